"""The input of ``cotainr build``: a conda environment file, and a server of the locked archives.

The file lists every locked package by version and build, so conda has one solution. conda and pip download
the packages from their public addresses if possible, else from a server of builder's on this host.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from builder.engines.base import BuildRequest
from builder.lock.environment import find_links, recipe_environment
from builder.model import Fetched, LockedPackage
from builder.redact import redact
from builder.store.files import link_or_copy

_CONDA_FORGE_HOST = "https://conda.anaconda.org/"


def environment_file(request: BuildRequest, server: str | None) -> str:
    """Returns the conda environment file.

    Args:
        request: The build.
        server: Address of :func:`serve_packages`; None uses the public channels and indexes.
    """
    recipe = request.recipe
    packages = request.lock.for_platform(recipe.platform)
    conda = sorted((p for p in packages if p.manager == "conda"), key=lambda p: p.name)
    wheels = sorted((p for p in packages if p.manager == "pip"), key=lambda p: p.name)

    channels = [f"{server}/conda"] if server else _channels(conda)
    dependencies: list[Any] = [f"{p.name}={p.version}={p.build}" for p in conda]
    if wheels:
        options = [f"--no-index --find-links {server}/wheels/"] if server else _index_options(request)
        dependencies.append({"pip": [*options, *map(_requirement, wheels)]})
    data = {"name": recipe.name, "channels": [*channels, "nodefaults"], "dependencies": dependencies}
    head = f"# Target {recipe.name}: all locked packages. Written by builder for cotainr (docs/engines.md).\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=1000)


def _requirement(package: LockedPackage) -> str:
    """A line of the requirements file; the hash makes pip take exactly this archive."""
    digest = f" --hash=sha256:{package.sha256}" if package.sha256 else ""
    return f"{package.name}=={package.version}{digest}"


def _channels(conda: Sequence[LockedPackage]) -> list[str]:
    """The channels in the packages' URLs; a lock may name them by aliases or mirrors."""
    found: dict[str, None] = {}
    for package in conda:
        channel = redact(package.url).rsplit("/", 2)[0]
        found[channel.removeprefix(_CONDA_FORGE_HOST)] = None
    return list(found)


def _index_options(request: BuildRequest) -> list[str]:
    """pip's options from the recipe and from the environment file, as lines of a requirements file."""
    recipe = request.recipe
    own = recipe_environment(recipe)
    index = recipe.pip.index_url or own.index_url
    extra = [*recipe.pip.extra_index_urls, *own.extra_index_urls]
    options = [f"--index-url {redact(index)}"] if index else []
    options += [f"--extra-index-url {redact(url)}" for url in dict.fromkeys(extra)]
    options += [f"--find-links {redact(link)}" for link in find_links(recipe) if "://" in link]
    return options


def needs_server(request: BuildRequest) -> bool:
    """Returns whether conda and pip cannot download the packages themselves.

    That is so offline, with mirrors and folders of this host, and where a URL needs credentials: those are
    never written into the environment file, which is in the image.
    """
    settings = request.settings
    urls = [package.url for package in request.lock.for_platform(request.recipe.platform)]
    return settings.offline or bool(settings.mirrors) or not all(map(_is_public, urls))


def _is_public(url: str) -> bool:
    return url.startswith(("http://", "https://")) and "$" not in url and redact(url) == url


class _Handler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def serve_packages(fetched: Sequence[Fetched], folder: Path) -> Iterator[str]:
    """Serves archives on the loopback interface and returns the address.

    ``/conda`` is a conda channel, ``/wheels/`` a page for pip's ``--find-links``.
    """
    from rattler.index import index_fs

    for name in ("conda/linux-64", "conda/noarch", "wheels"):
        (folder / name).mkdir(parents=True)
    for f in fetched:
        parent = folder / "conda" / f.package.subdir if f.package.manager == "conda" else folder / "wheels"
        parent.mkdir(exist_ok=True)
        link_or_copy(f.path, parent / f.package.filename)
    asyncio.run(index_fs(folder / "conda", force=True, write_shards=False, write_zst=False))

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
