"""What a folder contains: files that name packages, and the project's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.errors import ConfigError, UsageError
from builder.lock.environment import read_environment
from builder.lock.formats.explicit import MARK as EXPLICIT
from builder.start.base import this_platform
from builder.start.draft import APP
from builder.start.manifests import builds_package, has_pixi, has_project, read_pixi, read_pyproject
from builder.start.requirements import Requirements, read_requirements

Kind = Literal[
    "conda-lock",
    "environment",
    "pixi-lock",
    "pixi",
    "pylock",
    "uv",
    "pyproject",
    "requirements",
    "hashes",
    "explicit",
]
#: The kinds that are locks: a recipe names them with ``lock:``.
LOCKS: tuple[Kind, ...] = ("conda-lock", "pixi-lock", "pylock", "uv", "hashes", "explicit")
#: Characters of a text file in which a hash, or @EXPLICIT, is looked for.
_LOOKED_AT = 10_000

#: File names and what they are, in the order of precedence.
_NAMES: tuple[tuple[str, Kind], ...] = (
    ("conda-lock.yml", "conda-lock"),
    ("environment.yml", "environment"),
    ("environment.yaml", "environment"),
    ("pixi.lock", "pixi-lock"),
    ("pixi.toml", "pixi"),
    ("pylock.toml", "pylock"),
    ("uv.lock", "uv"),
    ("pyproject.toml", "pyproject"),
    ("requirements.txt", "requirements"),
)
#: Python files at the top that are not the project's program.
_NOT_PROGRAMS = ("setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py")
#: Folders at the top that are not the project's packages.
_NOT_PACKAGES = ("tests", "test", "docs", "dist", "build", "recipes", "environments", "sites")


@dataclass(frozen=True)
class Candidate:
    """A file that names packages."""

    path: Path
    kind: Kind


def candidates(folder: Path) -> list[Candidate]:
    """The files of a folder that name packages, the best one first."""
    return list(_candidates(folder))


def _candidates(folder: Path) -> Iterator[Candidate]:
    for name, kind in _NAMES:
        path = folder / name
        if not path.is_file():
            continue
        if kind != "pyproject":
            yield Candidate(path, _exact(path, kind))
        elif has_pixi(path):
            yield Candidate(path, "pixi")
        elif has_project(path):
            yield Candidate(path, "pyproject")


def candidate(path: Path, option: str = "--from") -> Candidate:
    """The kind of a file that the user names with an option.

    Raises:
        UsageError: the file does not exist, or builder cannot read such files.
    """
    if not path.is_file():
        raise UsageError(f"{option} {path}: no such file", "builder init finds or writes one")
    known = dict(_NAMES)
    kind = known.get(path.name)
    if kind == "pyproject" and has_pixi(path):
        kind = "pixi"
    if kind is None and path.name.endswith((".lock.yml", ".lock.yaml")):
        kind = "conda-lock"
    if kind is None:
        by_suffix: dict[str, Kind] = {".yml": "environment", ".yaml": "environment"}
        by_suffix |= {".txt": "requirements", ".in": "requirements"}
        kind = by_suffix.get(path.suffix)
    if kind is None and path.name.startswith("pylock.") and path.suffix == ".toml":
        kind = "pylock"
    if kind is None:
        raise UsageError(
            f"{path}: builder init cannot read this file",
            f"it reads {', '.join(known)} and other *.yml, *.txt",
        )
    return Candidate(path, _exact(path, kind))


def _exact(path: Path, kind: Kind) -> Kind:
    """The kind of a file, also by its content: requirements with hashes and lists of conda are locks."""
    if kind != "requirements":
        return kind
    with path.open(errors="replace") as file:
        text = file.read(_LOOKED_AT)
    if EXPLICIT.search(text):
        return "explicit"
    return "hashes" if "--hash=sha256:" in text else kind


def read_candidate(found: Candidate, groups: Sequence[str] = (), root: Path | None = None) -> Requirements:
    """What a file requires that is neither an environment file nor a lock.

    Args:
        found: the file.
        groups: extras and dependency groups of a ``pyproject.toml`` to add.
        root: the project folder; None: the folder of the file.

    Raises:
        ConfigError: the file is not valid, or has no such group.
    """
    if groups and found.kind != "pyproject":
        raise ConfigError(
            f"{found.path}: --with takes groups of a pyproject.toml", "add: --from pyproject.toml"
        )
    if found.kind == "pyproject":
        return read_pyproject(found.path, groups)
    return read_pixi(found.path) if found.kind == "pixi" else read_requirements(found.path, root)


def installs_project(found: Candidate, root: Path) -> bool:
    """Whether a file names the project itself as a package (``-e .``): then its code is not copied too.

    The lock of uv contains the project that it belongs to.

    Raises:
        ConfigError: the file is not valid.
    """
    if found.kind in ("pyproject", "uv"):
        project = found.path.with_name("pyproject.toml")
        return project.is_file() and builds_package(project)
    if found.kind == "requirements":
        lines = read_requirements(found.path, root).pip
        return any(re.fullmatch(r"(-e )?\.(\[.*\])?", line) for line in lines)
    if found.kind == "environment":
        sources = read_environment(found.path, this_platform() or "linux-64", root).sources
        return any(source.kind == "local" and source.url == "." for source in sources)
    return False


def own_code(folder: Path, *, installed: bool = False) -> tuple[tuple[str, str], ...]:
    """The project's own code, as sources and targets of ``files:``.

    It is the Python files at the top, the packages at the top, and ``src``; if the project is ``installed``
    as a package, only the Python files at the top.
    """
    scripts = [
        path.name
        for path in sorted(folder.glob("*.py"))
        if path.name not in _NOT_PROGRAMS and not path.name.startswith("test_")
    ]
    packages = [
        path.parent.name
        for path in sorted(folder.glob("*/__init__.py"))
        if path.parent.name not in _NOT_PACKAGES and not path.parent.name.startswith(".")
    ]
    source = ["src"] if any((folder / "src").rglob("*.py")) else []
    names = dict.fromkeys(scripts if installed else [*scripts, *packages, *source])
    return tuple((name, f"{APP}/{name}") for name in names)
