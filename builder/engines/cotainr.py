"""The cotainr engine: the real ``cotainr build``, with a conda environment file written from the locked versions.

cotainr unpacks a base, runs Miniforge's installer in it, lets conda solve the environment, and packs a SIF. The locked versions
and builds leave conda one solution. cotainr ends with 0 when it gives up, too, so the file is what counts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from builder.bases.image import BaseImage
from builder.bases.resolve import open_base, resolve_base
from builder.engines.apptainer import environment, find_tool, write_base
from builder.engines.base import BuildRequest, BuildResult, Clock, cached_sif
from builder.engines.kit import build_folder, link_or_copy
from builder.engines.prepare import opened_base, ordered_packages
from builder.errors import ImageError, RunnerError, UsageError
from builder.fetch.packages import fetch_packages
from builder.image.config import make_image
from builder.image.files import system_entries
from builder.layers.build import make_layer
from builder.layers.entry import LinkContext
from builder.lock.environment import find_links, read_environment
from builder.model import Fetched, LockedBase, LockedPackage, SifImage
from builder.net.mirrors import mirrored_base
from builder.redact import redact
from builder.run.process import tail
from builder.sif.write import write_sif

#: Where cotainr puts every environment.
PREFIX = "/opt/cotainr/conda/envs/conda_container_env"
#: The environment variable by which a user accepts the licences for all commands.
ACCEPT = "BUILDER_ACCEPT_LICENSES"


_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")
#: cotainr's sign that it lives, and what Python adds to its errors.
_SPINNER = re.compile(r"[\u2800-\u28ff]")
_TRACE = re.compile(r"\s|Traceback |The above exception ")


class Cotainr:
    """Builds SIFs with the cotainr that is installed."""

    name = "cotainr"
    formats = frozenset({"sif"})
    repeatable = False

    def available(self) -> str | None:
        """Whether cotainr is installed, and the singularity that it needs."""
        if find_cotainr() is None:
            return "cotainr is not installed (pip install cotainr; on LUMI: module load LUMI cotainr)"
        if find_tool() is None:
            return "cotainr needs singularity or apptainer, and neither is installed"
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        program = find_cotainr()
        if program is None:
            raise RunnerError(
                f"the engine cotainr does not work here: {self.available()}",
                "install it, or take another --engine",
            )
        if not request.accept_licenses and os.environ.get(ACCEPT) != "1":
            raise UsageError(
                f"cotainr installs Miniforge in the image of target {request.recipe.name}, and its licence was not accepted",
                "read it (https://github.com/conda-forge/miniforge/blob/main/LICENSE), and accept it with --accept-licenses, "
                f"or {ACCEPT}=1 for commands that build on their way (smoke, publish)",
            )
        request = replace_prefix(request)
        recipe, settings = request.recipe, request.settings
        clock = Clock()
        request.store.sweep(settings.tmpdir)
        # a mirror of the base says that the site's own images are not here
        system = recipe.cotainr.system if mirrored_base(settings, recipe.base) == recipe.base else None
        base = None if system else opened_base(request)
        notes = [f"the environment lies in {PREFIX}, where cotainr puts it; cotainr's own conda is beside it"]
        with build_folder(request) as folder, contextlib.ExitStack() as stack:
            served = None
            if needs_serving(request):
                packages = ordered_packages(recipe, request.lock)
                fetched = fetch_packages(
                    packages,
                    settings,
                    request.store,
                    find_links=find_links(recipe),
                    reporter=request.reporter,
                )
                served = stack.enter_context(serve_packages(fetched, folder / "packages"))
                notes.append(
                    "conda and pip took the locked archives from builder, not from their public addresses"
                )
            (folder / "environment.yml").write_text(environment_file(request, served))
            if base is None:
                origin = f"--system={system}"
                notes.append(f"the base is that of cotainr's system {system}, not the locked one")
            else:
                kind, place = write_base(base, folder / "base", request)
                origin = f"--base-image={place if kind == 'localimage' else f'{kind}:{place}'}"
            clock.mark("context")
            command = [
                program,
                "build",
                f"{folder}/image.sif",
                origin,
                f"--conda-env={folder}/environment.yml",
                "--accept-licenses",
                "--no-color",
                "-v",
            ]
            _run(request, command, folder)
            clock.mark("cotainr build")
            sif = _completed(request, folder / "image.sif", base)
        clock.mark("sif")
        return BuildResult(
            recipe,
            request.lock,
            LockedBase(base.reference, base.digest) if base else LockedBase(f"cotainr's system {system}", ""),
            sif=sif,
            engine=self.name,
            notes=tuple(notes),
            timings=clock.timings,
            definition=("cotainr.yml", environment_file(request, None)),
        )


def find_cotainr() -> str | None:
    """The path of cotainr: on PATH, or beside builder's own Python."""
    beside = Path(sys.executable).with_name("cotainr")
    return shutil.which("cotainr") or (str(beside) if os.access(beside, os.X_OK) else None)


def replace_prefix(request: BuildRequest) -> BuildRequest:
    """The request for the prefix that cotainr's environments have."""
    conda = request.recipe.conda.model_copy(update={"prefix": PREFIX})
    return replace(request, recipe=request.recipe.model_copy(update={"conda": conda}))


# the environment file -------------------------------------------------------------------------------------------------


def environment_file(request: BuildRequest, served: str | None) -> str:
    """The conda environment with one solution: each locked package by version and build.

    ``served`` is the address of builder's own server of the locked archives; None: their public channels and indexes.
    """
    recipe = request.recipe
    packages = request.lock.for_platform(recipe.platform)
    conda = sorted((p for p in packages if p.manager == "conda"), key=lambda p: p.name)
    wheels = sorted((p for p in packages if p.manager == "pip"), key=lambda p: p.name)
    dependencies: list[Any] = [f"{p.name}={p.version}={p.build}" for p in conda]
    if wheels:
        options = [f"--no-index --find-links {served}/wheels/"] if served else _index_options(request)
        dependencies.append({"pip": [*options, *(f"{p.name}=={p.version}{_hash(p)}" for p in wheels)]})
    data = {
        "name": recipe.name,
        "channels": [f"{served}/conda", "nodefaults"] if served else [*_channels(conda), "nodefaults"],
        "dependencies": dependencies,
    }
    head = f"# Target {recipe.name}, every package as it is locked. Made by builder for cotainr (docs/engines.md).\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=1000)


def _hash(package: LockedPackage) -> str:
    """What makes pip take this very archive; conda writes these lines into a requirements file as they are."""
    return f" --hash=sha256:{package.sha256}" if package.sha256 else ""


def _channels(conda: Sequence[LockedPackage]) -> list[str]:
    """The channels of the packages, as their URLs say: what a lock calls them may be a name or a mirror's."""
    found: dict[str, None] = {}
    for p in conda:
        channel = redact(p.url).rsplit("/", 2)[0]
        found[channel.removeprefix("https://conda.anaconda.org/")] = None
    return list(found)


def _index_options(request: BuildRequest) -> list[str]:
    """pip's options, of the recipe and of the environment file, in the form that a requirements file takes."""
    recipe = request.recipe
    index, extra = recipe.pip.index_url, list(recipe.pip.extra_index_urls)
    if recipe.environment_path.exists():
        own = read_environment(recipe.environment_path, recipe.platform)
        index = index or own.index_url
        extra = [*extra, *own.extra_index_urls]
    return [
        *([f"--index-url {redact(index)}"] if index else []),
        *(f"--extra-index-url {redact(url)}" for url in dict.fromkeys(extra)),
        *(f"--find-links {redact(link)}" for link in find_links(recipe) if "://" in link),
    ]


# packages from here ---------------------------------------------------------------------------------------------------


def needs_serving(request: BuildRequest) -> bool:
    """Whether conda and pip could not get the locked archives by themselves.

    So it is with folders and mirrors of this machine, offline, and where an address needs credentials: those stay out of the
    environment file.
    """
    settings = request.settings
    urls = [p.url for p in request.lock.for_platform(request.recipe.platform)]
    own = any(not u.startswith(("http://", "https://")) or "$" in u or redact(u) != u for u in urls)
    return own or settings.offline or bool(settings.mirrors)


@contextlib.contextmanager
def serve_packages(fetched: Sequence[Fetched], folder: Path) -> Iterator[str]:
    """Serves the locked archives on loopback as a conda channel and a find-links page; gives the address."""
    import asyncio

    from rattler.index import index_fs

    for subdir in ("linux-64", "noarch"):
        (folder / "conda" / subdir).mkdir(parents=True)
    (folder / "wheels").mkdir()
    for f in fetched:
        place = (
            folder
            / ("conda" if f.package.manager == "conda" else "wheels")
            / f.package.subdir
            / f.package.filename
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(f.path, place)
    asyncio.run(index_fs(folder / "conda", force=True, write_shards=False, write_zst=False))

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# the SIF --------------------------------------------------------------------------------------------------------------


def _completed(request: BuildRequest, built: Path, base: BaseImage | None) -> SifImage:
    """The SIF that cotainr made, with what it knows nothing of above it: entry point, smoke test, lock, files, variables, labels.

    In a layered SIF, cotainr's partition stays as it is.
    """
    recipe, settings, store = request.recipe, request.settings, request.store
    locked = resolve_base(f"sif:{built}", recipe.architecture, settings, store)
    made = open_base(locked, recipe.architecture, settings, store)
    below = replace(made, reference=base.reference, digest=base.digest) if base else made
    context = LinkContext(PREFIX, "", "", recipe.platform, request.requested)
    # cotainr's own environment script activates the environment for every command
    files = make_layer(
        system_entries(recipe, request.lock_text, context, ()), "builder: files", settings, store
    )
    image = make_image(
        below,
        [files],
        recipe=recipe,
        lock=request.lock,
        env={},
        annotations={**recipe.annotations, **request.annotations},
        epoch=settings.epoch,
    )
    return write_sif(
        image,
        cached_sif(request, "cotainr"),
        settings,
        store,
        layout=recipe.sif.layout,
        compression=recipe.sif.compression,
        base=made.sif,
        reporter=request.reporter,
    )


# running it -----------------------------------------------------------------------------------------------------------


def _run(request: BuildRequest, command: Sequence[str], folder: Path) -> None:
    """Runs cotainr and passes on what it says.

    Raises:
        ImageError: it failed, or ended well and left no file.
    """
    env = dict(environment(request.settings))
    if shutil.which("singularity") is None and (tool := find_tool()):  # cotainr knows no other name
        (folder / "bin").mkdir()
        (folder / "bin" / "singularity").symlink_to(tool)
        env["PATH"] = f"{folder}/bin:{env.get('PATH', '')}"
    request.reporter.note(f"cotainr: {shlex.join(command)}")
    lines: list[str] = []
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        cwd=folder,
    )
    assert process.stdout is not None
    try:
        for raw in process.stdout:
            line = _ESCAPES.sub("", raw).rstrip()
            if not line or _SPINNER.match(line):
                continue
            lines.append(line)
            if line.startswith("Cotainr:"):
                request.reporter.note(line)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code or not (folder / "image.sif").is_file():
        what = f"ended with code {code}" if code else "ended with code 0, but left no file"
        raise ImageError(
            f"cotainr build of target {request.recipe.name} {what}:\n{tail(x for x in lines if not _TRACE.match(x))}",
            _cure(lines),
        )


def _cure(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if "urlopen error" in text:
        return "cotainr fetches Miniforge from GitHub: build where that can be reached, or with --engine layered, which needs none"
    if "changing the container working directory" in text:
        return "cotainr works in TMPDIR, which must be a folder that the runtime mounts into every container: TMPDIR=/tmp"
    return "the lines above are cotainr's own; --engine layered makes the SIF without conda and without Miniforge"
