"""One build of a wheel in a container of the image, and checks of the wheel.

The container is removed afterwards.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion

from builder.build.run.base import Mount, Runner, RunOptions
from builder.build.run.process import Completed
from builder.build.run.task import TaskLog, run_in_folder
from builder.build.sources import SourceTree
from builder.core.datafiles import search, table
from builder.core.errors import WheelError
from builder.core.model import Fetched, Image, LockedPackage, SifImage
from builder.core.progress import working
from builder.core.settings import DEFAULT_EPOCH, Settings
from builder.core.store.reading import read_foreign
from builder.core.store.temporary import temporary_folder
from builder.core.workspace import Workspace
from builder.formats.layers.wheel_archive import WheelArchive
from builder.lock.config.recipe import Recipe
from builder.lock.config.steps import WheelBuild
from builder.lock.spec import SourceSpec
from builder.lock.wheels import target_tags

from . import driver
from .backend import Backend, check_requirement

#: Lines of the log in an error message.
TAIL = 30
#: The last line of a log without which a traceback says no more.
_SAYS_ALL = "ModuleNotFoundError:"
#: Lines of the log that are searched for a known reason.
_HINT_LINES = 2000
#: Bytes of the requirements that a build backend asks for.
MAX_REQUIREMENTS = 1 << 20
#: Where uv is in the container.
_UV = "/run/builder-uv"
_FOLDERS = ("out", "home", "tmp", "wheels", "cache")


@dataclass(frozen=True, slots=True)
class WheelJob:
    """One build."""

    name: str
    """The package, or what the environment file calls it, for messages."""
    package: str
    """The key of its settings below ``pip: {build: ...}``."""
    source: SourceSpec
    recipe: Recipe
    tree: SourceTree
    """The unpacked source; it is copied."""
    backend: Backend
    requires: Sequence[str]
    """The requirements that ``wheels`` fulfil."""
    settings: WheelBuild
    wheels: Sequence[Fetched] = ()
    """The build requirements and all that they need."""
    uv: Path = Path()
    """uv for the processor of the image."""


class NeedsMore(Exception):
    """The backend asks for further requirements (``get_requires_for_build_wheel``)."""

    def __init__(self, requirements: Sequence[str]) -> None:
        super().__init__(", ".join(requirements))
        self.requirements = tuple(requirements)


@contextmanager
def built(
    job: WheelJob, image: Image | SifImage, runner: Runner, work: Workspace
) -> Iterator[Path]:
    """Build a wheel; the folder that it is in exists until the end of the context.

    Args:
        job: what is built.
        image: has Python and the packages that the build sees.
        runner: runs the image.
        work: the folder for temporary files, the epoch, and who receives the output.

    Raises:
        NeedsMore: nothing was built.
        WheelError: the build failed; the message has the last lines of its log.
        RunnerError, ImageError: the container cannot be started.
        SpaceError: the disk is full.
    """
    place, settings, task = str(driver.FOLDER), work.settings, f"building the wheel of {job.name}"
    with (
        working(work.reporter, task),
        temporary_folder(settings.tmpdir, 0o755) as folder,
        TaskLog(settings, task, work.reporter, "wheel") as output,
    ):
        _fill(folder, job)
        options = RunOptions(
            env=_environment(job, settings),
            mounts=[Mount(folder, place, readonly=False), Mount(job.uv, _UV)],
            network="host" if job.settings.network else "none",
            on_line=output.add,
        )
        python = f"{job.recipe.conda.prefix}/bin/python"
        command = [python, "-I", f"{place}/driver.py"]
        done = run_in_folder(runner, image, command, options)
        if done.returncode == driver.NEEDS_MORE:
            raise NeedsMore(_requirements(folder, job))
        if done.returncode:
            raise _failure(done, output, job)
        yield _out(folder, job)


def _fill(work: Path, job: WheelJob) -> None:
    """Write what the container reads."""
    for name in _FOLDERS:
        (work / name).mkdir()
    shutil.copytree(job.tree.root, work / "source", symlinks=True)
    for wheel in job.wheels:
        shutil.copyfile(wheel.path, work / "wheels" / wheel.package.filename)
    shutil.copyfile(driver.__file__, work / "driver.py")
    plan = {
        "uv": _UV,
        "source": job.tree.path.relative_to(job.tree.root).as_posix(),
        "no_isolation": job.settings.no_isolation,
        "wheels": [wheel.package.filename for wheel in job.wheels],
        "requires": list(job.requires),
        "backend": job.backend.name,
        "backend_path": list(job.backend.path),
        "config_settings": dict(job.settings.config_settings),
    }
    (work / "plan.json").write_text(json.dumps(plan))


def _environment(job: WheelJob, settings: Settings) -> dict[str, str]:
    folder = driver.FOLDER
    return {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_NO_INDEX": "0" if job.settings.network else "1",
        "SOURCE_DATE_EPOCH": str(max(settings.epoch, DEFAULT_EPOCH)),  # a zip has no time before
        **job.settings.env,
    }


def _requirements(work: Path, job: WheelJob) -> list[str]:
    """Return the requirements that the backend asks for, from an untrusted file."""
    try:
        found = json.loads(read_foreign(work / "requires.json", MAX_REQUIREMENTS))
        if not isinstance(found, list):
            raise TypeError
        for text in found:
            check_requirement(text)
        return found
    except (ValueError, TypeError, RecursionError):
        problem = "asks for requirements that are no list of texts as pip reads them"
        raise WheelError(f"{job.name}: its build backend {problem}") from None


def _out(work: Path, job: WheelJob) -> Path:
    """Return the folder of the wheel. The container may have replaced it."""
    folder = work / "out"
    if folder.is_symlink() or not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        raise WheelError(f"{job.name}: its build removed the folder for the wheel")
    return folder


def _failure(done: Completed, output: TaskLog, job: WheelJob) -> WheelError:
    """Return the error for a build that failed."""
    is_environment = done.returncode == driver.NO_ENVIRONMENT
    what = ": its build environment cannot be made" if is_environment else ""
    text = "\n".join(output.lines[-_HINT_LINES:])
    tail = output.tail(1 if text.rpartition("\n")[2].startswith(_SAYS_ALL) else TAIL)
    return WheelError(
        f"building the wheel of {job.name} failed (exit code {done.returncode}){what}\n"
        f"{tail}\n  the whole log: {output.path}",
        _hint(text, job),
    )


def _hint(text: str, job: WheelJob) -> str:
    """Return the line to write after a failed build, from its log."""
    known = job.settings.base_packages
    place = f"pip: {{build: {{{job.package}: {{\\1}}}}}}"
    known_logs = table(__file__, "hints.yaml")
    lacking = known_logs["lacking"].items()
    found = " ".join(packages for packages, patterns in lacking if search(patterns, text))
    programs = re.findall(known_logs["programs"].replace("\n", ""), text, re.MULTILINE)
    has_debian = "gcc" in found and "python3" in job.recipe.base_packages
    headers = ["python3-dev"] if has_debian else []  # of Debian's Python
    names = dict.fromkeys([*known, *found.split(), *headers, *programs])
    if len(names) > len(known):
        hint = f"the build lacks OS packages: `base_packages: [{', '.join(names)}]`"
    else:
        matches = ((search(row["pattern"], text), row["hint"]) for row in known_logs["reasons"])
        match, hint = next((match, hint) for match, hint in matches if match)
        named = filter(None, match.groups())
        hint = hint.format(*named, known="".join(f"{name}, " for name in known))
    where = f" (in {job.recipe.source})" if job.recipe.source.name and "`" in hint else ""
    return re.sub("`(.*?)`", place, hint) + where


def check_wheel(
    folder: Path, wanted: str, name: str | None, recipe: Recipe, python: str
) -> Fetched:
    """Check what a build left in its folder; return the wheel, without hash.

    Args:
        folder: the folder for finished wheels.
        wanted: the package, for messages.
        name: the name that the wheel has to have, normalised; None: any.
        recipe: the target.
        python: the version of the target's Python.

    Raises:
        WheelError: there is not exactly one wheel, it is another package's, it does not fit the
            target, or it is damaged.
    """
    path = _only_wheel(folder, wanted)
    try:
        found, version, _, tags = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as e:
        raise WheelError(f"{wanted}: its build made {path.name!r}: {e}") from None
    if name is not None and found != name:
        hint = f"write the name of the package: {found} @ URL"
        raise WheelError(f"{wanted}: its source is that of the package {found}, not {name}", hint)
    if tags.isdisjoint(target_tags(recipe, python)):
        raise WheelError(
            f"{wanted}: its build made {path.name}, which is not for Python {python} on {recipe.platform}",
            "correct the settings of the build (env, config_settings), or use another version",
        )
    package = LockedPackage(found, str(version), "pip", recipe.platform, path.name, None)
    fetched = Fetched(package, path, path.stat().st_size)
    with WheelArchive(fetched):  # checks its members
        return fetched


def _only_wheel(folder: Path, wanted: str) -> Path:
    wheels = [path for path in sorted(folder.iterdir()) if path.name.endswith(".whl")]
    if len(wheels) != 1 or wheels[0].is_symlink() or not wheels[0].is_file():
        made = ", ".join(path.name for path in wheels) or "no wheel"
        raise WheelError(f"{wanted}: its build has to make one wheel, and made {made}")
    return wheels[0]
