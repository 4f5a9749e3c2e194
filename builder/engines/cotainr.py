"""The cotainr engine: the installed ``cotainr build``, with a conda environment file of the locked versions.

cotainr unpacks a base, runs Miniforge's installer in it, lets conda solve the environment, and writes a SIF.
It exits with 0 even after some failures (cotainr 2025.7), so the engine checks that there is a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.bases.image import BaseImage
from builder.bases.resolve import is_made_here, open_base, resolve_base
from builder.engines.apptainer import environment, write_base
from builder.engines.base import BuildRequest, BuildResult, Clock
from builder.engines.cotainr_inputs import environment_file, needs_server, serve_packages
from builder.engines.folders import build_folder, cached_sif
from builder.engines.prepare import fetch_locked, open_locked_base, ordered_packages
from builder.errors import ImageError, RunnerError, UsageError
from builder.image.config import make_image
from builder.image.files import system_entries
from builder.layers.build import make_layer
from builder.layers.entry import LinkContext
from builder.model import LockedBase, SifImage
from builder.net.mirrors import mirrored_base
from builder.run.apptainer import find_apptainer
from builder.run.process import tail
from builder.sif.write import write_sif

#: Where cotainr installs every environment.
PREFIX = "/opt/cotainr/conda/envs/conda_container_env"
#: The environment variable that accepts the licences, for commands without ``--accept-licenses``.
ACCEPT = "BUILDER_ACCEPT_LICENSES"

_LICENCE = "https://github.com/conda-forge/miniforge/blob/main/LICENSE"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")
#: cotainr's progress spinner: braille characters.
_SPINNER = re.compile(r"[\u2800-\u28ff]")
#: Lines of Python tracebacks, which error messages leave out.
_TRACEBACK = re.compile(r"\s|Traceback |The above exception ")


@dataclass(frozen=True)
class _Base:
    """The base of a cotainr build: an image that builder opened, or a system of cotainr's configuration."""

    image: BaseImage | None
    system: str | None

    @property
    def locked(self) -> LockedBase:
        if self.image is None:
            return LockedBase(f"cotainr's system {self.system}", "")
        return LockedBase(self.image.reference, self.image.digest)

    def option(self, folder: Path, request: BuildRequest) -> str:
        """cotainr's option; an image is written into ``folder``."""
        if self.image is None:
            return f"--system={self.system}"
        agent, source = write_base(self.image, folder, request)
        return f"--base-image={source}" if agent == "localimage" else f"--base-image={agent}:{source}"


class Cotainr:
    """Builds SIFs with the cotainr that is installed."""

    name = "cotainr"
    formats = frozenset({"sif"})
    repeatable = False

    def available(self) -> str | None:
        if find_cotainr() is None:
            return "cotainr is not installed (pip install cotainr, or load your site's module of it)"
        if find_apptainer() is None:
            return "cotainr needs apptainer or singularity, and neither is installed"
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        program = find_cotainr()
        if program is None:
            raise RunnerError(f"the engine cotainr does not work here: {self.available()}", "install it")
        _require_licence(request)
        request = with_cotainr_prefix(request)
        clock = Clock()
        request.store.sweep(request.settings.tmpdir)
        base = _open_base(request)
        notes = [
            f"the environment is in {PREFIX}, where cotainr installs it, with cotainr's own conda beside it"
        ]
        if base.image is None:
            notes.append(f"the base is that of cotainr's system {base.system}, not the locked one")

        with build_folder(request) as folder, contextlib.ExitStack() as stack:
            server = None
            if needs_server(request):
                fetched = fetch_locked(request, ordered_packages(request.recipe, request.lock))
                server = stack.enter_context(serve_packages(fetched, folder / "packages"))
                notes.append(
                    "conda and pip got the locked archives from builder, not from their public addresses"
                )
            (folder / "environment.yml").write_text(environment_file(request, server))
            command = [
                *(program, "build", f"{folder}/image.sif", base.option(folder / "base", request)),
                f"--conda-env={folder}/environment.yml",
                *("--accept-licenses", "--no-color", "-v"),
            ]
            clock.mark("context")
            _run(request, command, folder)
            clock.mark("cotainr build")
            sif = _add_files(request, folder / "image.sif", base.image)
        clock.mark("sif")
        return BuildResult(
            request.recipe,
            request.lock,
            base.locked,
            sif,
            engine=self.name,
            notes=tuple(notes),
            timings=clock.timings,
            definition=("cotainr.yml", environment_file(request, None)),
        )


def find_cotainr() -> str | None:
    """Returns the path of cotainr: on PATH, or beside builder's own Python."""
    beside = Path(sys.executable).with_name("cotainr")
    return shutil.which("cotainr") or (str(beside) if os.access(beside, os.X_OK) else None)


def with_cotainr_prefix(request: BuildRequest) -> BuildRequest:
    """Returns the request with the prefix of cotainr's environments."""
    conda = request.recipe.conda.model_copy(update={"prefix": PREFIX})
    return replace(request, recipe=request.recipe.model_copy(update={"conda": conda}))


def _require_licence(request: BuildRequest) -> None:
    if request.accept_licenses or os.environ.get(ACCEPT) == "1":
        return
    raise UsageError(
        f"cotainr installs Miniforge in the image of target {request.recipe.name}, "
        "and its licence was not accepted",
        f"read it ({_LICENCE}), and accept it with --accept-licenses, or {ACCEPT}=1 for smoke and publish",
    )


def _open_base(request: BuildRequest) -> _Base:
    recipe = request.recipe
    system = recipe.cotainr.system
    # where a mirror replaces the base, the images of the site's systems are not available either
    is_system = system and mirrored_base(request.settings, recipe.base) == recipe.base
    if is_system and (not recipe.base_packages or is_made_here(recipe.base)):
        return _Base(None, system)
    return _Base(open_locked_base(request), None)


def _add_files(request: BuildRequest, built: Path, base: BaseImage | None) -> SifImage:
    """The SIF in the cache: cotainr's, and above it entry point, smoke test, lock, files, variables and
    labels.

    In a layered SIF, cotainr's partition is unchanged.
    """
    recipe, settings, store = request.recipe, request.settings, request.store
    locked = resolve_base(f"sif:{built}", recipe.architecture, settings, store)
    opened = open_base(locked, recipe.architecture, settings, store)
    below = replace(opened, reference=base.reference, digest=base.digest) if base else opened
    context = LinkContext(PREFIX, "", "", recipe.platform, request.requested)
    # no activation scripts: cotainr's own environment script activates the environment for every command
    entries = system_entries(recipe, request.lock_text, context, ())
    image = make_image(
        below,
        [make_layer(entries, "builder: files", settings, store)],
        recipe=recipe,
        lock=request.lock,
        env={},
        annotations={**recipe.annotations, **request.annotations},
        epoch=request.created,
    )
    return write_sif(
        image,
        cached_sif(request, "cotainr"),
        settings,
        store,
        layout=recipe.sif.layout,
        compression=recipe.sif.compression,
        base=opened.sif,
        reporter=request.reporter,
    )


# running cotainr --------------------------------------------------------------------------------------------


def _run(request: BuildRequest, command: Sequence[str], folder: Path) -> None:
    """Runs cotainr and reports its progress.

    Raises:
        ImageError: It failed, or exited with 0 and wrote no file.
    """
    request.reporter.note(f"cotainr: {shlex.join(command)}")
    lines: list[str] = []
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_environment(request, folder),
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

    if code == 0 and (folder / "image.sif").is_file():
        return
    problem = f"ended with code {code}" if code else "ended with code 0 but wrote no file"
    last_lines = tail(line for line in lines if not _TRACEBACK.match(line))
    raise ImageError(
        f"cotainr build of target {request.recipe.name} {problem}:\n{last_lines}", _hint("\n".join(lines))
    )


def _environment(request: BuildRequest, folder: Path) -> dict[str, str]:
    """cotainr's environment. cotainr runs ``singularity``; if that is missing, a link leads to apptainer."""
    env = dict(environment(request.settings))
    tool = find_apptainer()
    if tool and shutil.which("singularity") is None:
        (folder / "bin").mkdir()
        (folder / "bin" / "singularity").symlink_to(tool)
        env["PATH"] = f"{folder}/bin:{env.get('PATH', '')}"
    return env


def _hint(text: str) -> str:
    if "urlopen error" in text:
        return "cotainr downloads Miniforge: build where GitHub can be reached, or with --engine layered"
    if "changing the container working directory" in text:
        return "cotainr needs a TMPDIR that the runtime mounts into containers: TMPDIR=/tmp"
    return (
        "the lines above are cotainr's; --engine layered builds the SIF without conda and without Miniforge"
    )
