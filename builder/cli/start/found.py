"""The content of a folder: files that name packages, and the project's own code."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core import datafiles
from builder.core.errors import UsageError
from builder.core.store.reading import Reader, text_of
from builder.lock.config.safeyaml import MAX_BYTES
from builder.lock.environment import read_any_environment
from builder.lock.manifests import is_manifest
from builder.lock.manifests.pyproject import builds_package
from builder.lock.othertools import FORMATS, export_command, lock_format, named_format
from builder.lock.spec import Environment
from builder.lock.tomlfile import load_toml, table

from .base import this_platform
from .draft import APP
from .imports import imported_modules, imported_packages

log = logging.getLogger(__name__)

_WITH_CONDA = ("conda-lock.yml", "environment.yml", "environment.yaml", "pixi.lock", "pixi.toml")
_LOCKS = (name for row in FORMATS for name in row.file_names if "*" not in name)
#: Of conda if they have dependencies.
_MAYBE = ("conda.yml", "env.yml", "env.yaml")
_OTHERS = ("pyproject.toml", "requirements.txt", "conda.yaml", *_MAYBE, "setup.py")
#: Names of files, in the order of precedence.
_NAMES = tuple(dict.fromkeys((*_WITH_CONDA, *_LOCKS, *_OTHERS)))
#: How the names of other files end.
_SUFFIXES = (".yml", ".yaml", ".txt", ".in")
#: Python files at the top that are not the project's program.
_NOT_PROGRAMS = ("setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py")
#: Folders that a hint names.
_MOST_NAMES = 8
#: Folders at the top that are not the project's packages.
_NOT_PACKAGES = ("tests", "test", "docs", "dist", "build", "recipes", "environments", "sites")


@dataclass(frozen=True)
class Candidate:
    """A file that names packages."""

    path: Path
    lock: str | None
    """The format of a lock: the recipe names it with ``lock:``. None: with ``environment:``."""


def candidates(folder: Path) -> list[Candidate]:
    """Return the files of a folder that name packages, the best one first."""
    paths = [path for name in _NAMES if (path := folder / name).is_file()]
    return [Candidate(path, _format(path)) for path in paths if _names_packages(path)]


def _names_packages(path: Path) -> bool:
    """Return whether a file names packages: many ``pyproject.toml`` have settings of tools only."""
    if path.name != "pyproject.toml":
        return path.name not in _MAYBE or "dependencies:" in path.read_text(errors="replace")
    file = load_toml(path)
    listed = table(file.data, "project").get("dependencies") or table(file.data, "tool", "pixi")
    if not (names_some := builds_package(file) or bool(listed)):
        log.info("%s is ignored: it names no packages", path)
    return names_some


def candidate(path: Path) -> Candidate:
    """Return the candidate that ``--from`` names.

    Raises:
        UsageError: the file does not exist, or builder cannot read such files.
    """
    if not path.is_file():
        problem = f"--from {path}: no such file"
        others = candidates(path.parent) if path.name != "requirements.txt" else []
        if others:
            hint = f"there is {others[0].path}: builder init --from {others[0].path}"
            raise UsageError(problem, hint)
        raise no_packages(problem, path.parent)
    if path.suffix not in _SUFFIXES and path.name not in _NAMES and not named_format(path.name):
        hint = f"it reads {', '.join(_NAMES)} and other *.yml, *.txt"
        if export := export_command(path):
            hint = f"{export} && builder init --from {export.split()[-1]}"
        raise UsageError(f"{path}: builder init cannot read this file", hint)
    return Candidate(path, _format(path))


def _format(path: Path) -> str | None:
    """Return the format of a lock. Requirements are one if they have hashes."""
    reader = Reader(UsageError, "name another file: --from FILE", MAX_BYTES)
    text = reader.read(path).decode(errors="replace")
    found = lock_format(path, text)
    name = found.name if found else None
    return None if name == "requirements" and "--hash=sha256:" not in text else name


def asks_for(found: Candidate, root: Path, groups: Sequence[str] = ()) -> Environment | None:
    """Return the content of a file; None for a lock, which the command that locks reads.

    Args:
        found: the file.
        root: the project folder.
        groups: of a ``pyproject.toml``, as in a recipe.

    Raises:
        UsageError: it names no packages, and is no environment file of conda.
        ConfigError: the file is not valid.
    """
    if found.lock:
        return None
    environment = read_any_environment(found.path, this_platform() or "linux-64", root, groups)
    if is_manifest(found.path) and not environment.lists_packages and not environment.sources:
        problem = f"{found.path} names no packages"
        data = load_toml(found.path).data if found.path.suffix == ".toml" else {}
        named = table(data, "environments") or table(data, "tool", "pixi", "environments")
        if others := ", ".join(name for name in named if name != "default"):
            hint = f"write recipes/NAME.yaml: {{base: 'debian:bookworm', environment: {found.path.name}"
            raise UsageError(f"{problem} but for {others}", f"{hint}, lock_environment: {others}}}")
        raise no_packages(problem, root)
    return environment


def no_packages(problem: str, root: Path) -> UsageError:
    """Return the error for a project in which no file names packages.

    The hint names the packages that the code imports, or a folder with such a file.
    """
    hint = "list the packages in requirements.txt, and run: builder init --from requirements.txt"
    if names := imported_packages(root, [name for name, _ in own_code(root)]):
        write = f"printf '%s\\n' {shlex.join(names)} >> requirements.txt"
        hint = f"the code imports these: {write} && builder init --from requirements.txt"
    else:
        paths = sorted(path for pattern in ("*", "*/*") for path in root.glob(pattern))
        if below := [path for path in paths if not path.is_symlink() and candidates(path)]:
            shown = ", ".join(str(path.relative_to(root)) for path in below[:_MOST_NAMES])
            command = f"cd {shlex.quote(str(below[0]))} && builder init"
            hint = f"folders below name some ({shown}): {command}"
    return UsageError(problem, hint)


def installs_project(found: Candidate, environment: Environment | None) -> bool:
    """Return whether a file names the project itself as a package: then its code is not copied too.

    The lock of uv contains the project that it belongs to.

    Args:
        found: the file.
        environment: its content; None for a lock.

    Raises:
        ConfigError: the file is not valid.
    """
    if environment is None:
        project = found.path.with_name("pyproject.toml")
        return found.lock == "uvlock" and project.is_file() and builds_package(load_toml(project))
    return any(source.kind == "local" and source.url == "." for source in environment.sources)


def compilers(folder: Path) -> list[str]:
    """Return the Debian packages that compile the project's own package; none for pure Python.

    ``setup.py`` is searched and not run, as are the tables of ``pyproject.toml`` about the build.
    """
    path, setup = folder / "pyproject.toml", text_of(folder / "setup.py")
    data = load_toml(path).data if path.is_file() else {}
    text = f"{setup}{data.get('build-system')}{table(data, 'tool', 'setuptools')}"
    rows = datafiles.table(__file__, "compilers.yaml").items()
    return next((names.split() for names, pattern in rows if re.search(pattern, text)), [])


def own_code(folder: Path, *, installed: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the project's own code, as sources and targets of ``files:``.

    It is the Python files at the top, the packages at the top (also without ``__init__.py``, if one
    of these files imports it), and ``src``; if the project is ``installed`` as a package, only the
    Python files at the top.
    """
    names = sorted({path.name for path in folder.glob("*.py")}.difference(_NOT_PROGRAMS))
    scripts = [name for name in names if not name.startswith("test_")]
    source = ["src"] if any((folder / "src").rglob("*.py")) else []
    found = scripts if installed else [*scripts, *_packages(folder, scripts), *source]
    return tuple((name, f"{APP}/{name}") for name in dict.fromkeys(found))


def _packages(folder: Path, scripts: Sequence[str]) -> list[str]:
    """Return the folders at the top that are packages, or that files at the top import."""
    imported = set(imported_modules(folder / name for name in scripts))
    names = {path.parent.name for path in folder.glob("*/__init__.py")}
    names |= imported & {path.parent.name for path in folder.glob("*/*.py")}
    return sorted(name for name in names.difference(_NOT_PACKAGES) if not name.startswith("."))
