"""The cotainr engine: the installed ``cotainr build``, with an environment file of the lock.

cotainr unpacks a base, runs Miniforge's installer in it, lets conda solve the environment, and
writes a SIF. The environment file lists every locked package by version and build, so conda has one
solution, and builder serves the locked archives on this host. cotainr exits with 0 even after some
failures (2025.7), so the engine checks that there is a file.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from builder.build.bases.image import BaseImage
from builder.build.bases.resolve import open_base, resolve_base
from builder.build.image.files import system_entries
from builder.build.run.apptainer import find_apptainer
from builder.build.run.process import execute
from builder.core.errors import UsageError
from builder.core.model import Fetched, LockedBase, SifImage
from builder.core.store.files import link_or_copy, space_errors
from builder.core.store.temporary import temporary_folder
from builder.formats.layers.build import make_layer
from builder.formats.oci.layout import write_layout

from .apptainer import check_built, environment
from .base import BuildRequest, BuildResult, Clock
from .prepare import (
    fetch_archives,
    image_of_build,
    open_locked_base,
    ordered_packages,
    write_target_sif,
)

#: Where cotainr installs every environment.
PREFIX = "/opt/cotainr/conda/envs/conda_container_env"
_NOTE = f"the environment is in {PREFIX}, where cotainr installs it, beside its own conda"
#: The environment variable that accepts the licences, for commands without ``--accept-licenses``.
ACCEPT = "BUILDER_ACCEPT_LICENSES"

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")


class Cotainr:
    """Builds SIFs with the cotainr that is installed."""

    name = "cotainr"
    formats = frozenset({"sif"})
    repeatable = False

    def available(self) -> str | None:
        if find_cotainr() is None:
            return (
                "cotainr is not installed (pip install cotainr, or load your site's module of it)"
            )
        if find_apptainer() is None:
            return "cotainr needs apptainer or singularity, and neither is installed"
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        _require_licence(request)
        request = with_cotainr_prefix(request)
        recipe = request.recipe
        clock = Clock()
        request.work.store.sweep(request.work.settings.tmpdir)
        base = open_locked_base(request)
        fetched = fetch_archives(request)(ordered_packages(recipe, request.lock))
        parent = request.work.store.tmp  # where files can be hard links to the cache's blobs
        with (
            space_errors(parent),
            temporary_folder(parent, 0o700) as folder,
            serve_packages(fetched, folder / "packages") as server,
        ):
            (folder / "environment.yml").write_text(environment_file(request, server))
            command = [find_cotainr() or "cotainr", "build", f"{folder}/image.sif"]
            command += [_base_option(request, base, folder / "base")]
            command += [f"--conda-env={folder}/environment.yml"]
            command += ["--accept-licenses", "--no-color", "-v"]
            _run(request, command, folder)
            clock.mark("cotainr build")
            sif = _add_files(request, folder / "image.sif", base)
        clock.mark("sif")
        return BuildResult(
            recipe,
            request.lock,
            LockedBase(base.reference, base.digest),
            sif,
            engine=self.name,
            notes=(_NOTE,),
            timings=clock.timings,
            definition=("cotainr.yml", environment_file(request, "http://127.0.0.1:PORT")),
        )


def find_cotainr() -> str | None:
    """Return the path of cotainr: on PATH, or in the folder of builder's own Python."""
    own = Path(sys.executable).with_name("cotainr")
    return shutil.which("cotainr") or (str(own) if os.access(own, os.X_OK) else None)


def with_cotainr_prefix(request: BuildRequest) -> BuildRequest:
    """Return the request with the prefix of cotainr's environments."""
    conda = request.recipe.conda.model_copy(update={"prefix": PREFIX})
    return replace(request, recipe=request.recipe.model_copy(update={"conda": conda}))


def _require_licence(request: BuildRequest) -> None:
    if not request.options.accept_licenses and os.environ.get(ACCEPT) != "1":
        raise UsageError(
            f"cotainr installs Miniforge in the image of target {request.recipe.name}, "
            "and its licence was not accepted",
            "read it (https://github.com/conda-forge/miniforge/blob/main/LICENSE), and accept it with "
            f"--accept-licenses, or {ACCEPT}=1 for smoke and publish",
        )


# the input of cotainr -----------------------------------------------------------------------------


def _base_option(request: BuildRequest, base: BaseImage, folder: Path) -> str:
    """Return cotainr's option for the base; an OCI image is written into ``folder``."""
    if base.sif is not None:
        return f"--base-image={base.sif.path.absolute()}"
    write_layout(base.image(), folder, None, request.work.store, durable=False)
    return f"--base-image=oci:{folder}"


def environment_file(request: BuildRequest, server: str) -> str:
    """Return the conda environment file of all locked packages.

    Args:
        request: The build.
        server: The address of :func:`serve_packages`.
    """
    recipe = request.recipe
    packages = sorted(request.lock.for_platform(recipe.platform), key=lambda p: p.name)
    conda = [f"{p.name}={p.version}={p.build}" for p in packages if p.manager == "conda"]
    # the hash makes pip take exactly this archive
    hashes = {p.key: f" --hash=sha256:{p.sha256}" if p.sha256 else "" for p in packages}
    wheels = [f"{p.name}=={p.version}{hashes[p.key]}" for p in packages if p.manager == "pip"]
    dependencies: list[Any] = [*conda]
    if wheels:
        dependencies.append({"pip": [f"--no-index --find-links {server}/wheels/", *wheels]})
    channels = [f"{server}/conda", "nodefaults"]
    data = {"name": recipe.name, "channels": channels, "dependencies": dependencies}
    head = f"# Target {recipe.name}: all locked packages. Written by builder for cotainr (docs/engines.md).\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=1000)


class _Handler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def serve_packages(fetched: Sequence[Fetched], folder: Path) -> Iterator[str]:
    """Serve archives on the loopback interface and return the address.

    ``/conda`` is a conda channel, ``/wheels/`` a page for pip's ``--find-links``. The hashes of the
    archives were compared with the lock.
    """
    from rattler.index import index_fs

    for name in ("conda/linux-64", "conda/noarch", "wheels"):
        (folder / name).mkdir(parents=True)
    for file in fetched:
        package = file.package
        part = f"conda/{package.subdir}" if package.manager == "conda" else "wheels"
        (folder / part).mkdir(exist_ok=True)
        link_or_copy(file.path, folder / part / package.filename)
    asyncio.run(index_fs(folder / "conda", force=True, write_shards=False, write_zst=False))

    handler = functools.partial(_Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def _add_files(request: BuildRequest, built: Path, base: BaseImage) -> SifImage:
    """Return the SIF in the cache: cotainr's, with builder's files and metadata above it.

    In a layered SIF, cotainr's partition is unchanged.
    """
    recipe = request.recipe
    locked = resolve_base(f"sif:{built}", recipe, request.work)
    opened = open_base(locked, recipe, request.work)
    below = replace(opened, reference=base.reference, digest=base.digest)
    # no activation scripts: cotainr's own environment script activates the environment for every
    # command
    entries = system_entries(recipe, request.lock.text, ())
    files = make_layer(entries, "builder: files", request.work)
    image = image_of_build(request, below, [files], {})
    return write_target_sif(request, "cotainr", image, opened.sif)


# running cotainr ----------------------------------------------------------------------------------


def _run(request: BuildRequest, command: Sequence[str], folder: Path) -> None:
    """Run cotainr and report its progress.

    Raises:
        ImageError: It failed, or exited with 0 and wrote no file.
    """
    request.work.reporter.note(f"cotainr: {shlex.join(command)}")
    lines: list[str] = []

    def listen(raw: str) -> None:
        line = _ESCAPES.sub("", raw).rstrip()
        is_spinner = "\u2800" <= line[:1] <= "\u28ff"  # cotainr's progress: braille characters
        if line and not is_spinner:
            lines.append(line)
        if line.startswith("Cotainr:"):
            request.work.reporter.note(line)

    # all output goes to stderr, which is read line by line
    merged = ["/bin/sh", "-c", 'cd "$0" && exec "$@" 1>&2', str(folder), *command]
    code = execute(merged, env=_environment(request, folder), on_line=listen).returncode
    check_built(request, "cotainr", lines, folder / "image.sif", code)


def _environment(request: BuildRequest, folder: Path) -> dict[str, str]:
    """Return cotainr's environment. It runs ``singularity``: if missing, a link to apptainer."""
    env = dict(environment(request.work.settings))
    tool = find_apptainer()
    if tool and shutil.which("singularity") is None:
        (folder / "bin").mkdir()
        (folder / "bin" / "singularity").symlink_to(tool)
        env["PATH"] = f"{folder}/bin:{env.get('PATH', '')}"
    return env
