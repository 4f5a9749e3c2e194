"""Files of other tools: their formats, and the hint for one that a recipe names in a wrong key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from builder.core.datafiles import table


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format of locks. The module of its name in :mod:`builder.lock.formats` reads it."""

    name: str
    what: str
    """For messages: continues "FILE is"."""
    file_names: Sequence[str]
    """Names, and patterns of names, of files that have this format whatever they contain."""
    content: Sequence[str]
    """Lines that other files have, as patterns: one search each, so that no text takes long."""
    has_python: bool = False
    """Whether it locks conda packages, so that it has a Python; other formats lock wheels only."""


_TABLES = table(__file__, "othertools.yaml")
#: A file has the first format with its name, else the first one with its content.
FORMATS = tuple(ForeignFormat(**row) for row in _TABLES["formats"])
#: The only format that :func:`builder.lock.file.read_lock` reads: builder's own. Then the one that
#: only files with a suffix of pip have.
CONDA_LOCK, REQUIREMENTS = FORMATS[-2:]
#: Locks that builder does not read, the tool, and the command that writes one that it reads.
_EXPORTS: dict[str, tuple[str, str]] = _TABLES["exports"]
_SUFFIXES = (".txt", ".in", ".pip")


@dataclass(frozen=True, slots=True)
class OtherFile:
    """The kind of a file of another tool, and the way to its content."""

    what: str
    """Continues "FILE is"."""
    hint: str
    """The key of the recipe for such a file, or the command that exports it."""


def named_format(name: str) -> ForeignFormat | None:
    """Return the format that files of this name have; None if the name does not tell it."""
    patterns = ((pattern, row) for row in FORMATS for pattern in row.file_names)
    return next((row for pattern, row in patterns if fnmatchcase(name, pattern)), None)


def lock_format(path: Path, text: str) -> ForeignFormat | None:
    """Return the format of a lock file, from its name and content; None if it is none of them."""
    if found := named_format(path.name):
        return found
    for row in FORMATS:
        if all(re.search(pattern, text, re.MULTILINE) for pattern in row.content):
            return row if row is not REQUIREMENTS or path.suffix in _SUFFIXES else None
    return None


def other_file(path: Path, text: str) -> OtherFile | None:
    """Return the kind of a file that a recipe names in a wrong key; None if it is not known."""
    name = path.name
    if name in _EXPORTS:
        hint = f"export it: {export_command(path)}; then name that file: lock: FILE"
        return OtherFile(f"the lock file of {_EXPORTS[name][0]}, which builder does not read", hint)
    as_environment = f"name it as the environment, environment: {name}"
    as_environment += ", remove 'lock:', and run builder lock"
    if name in ("pyproject.toml", "pixi.toml"):
        return OtherFile("a project file (TOML), not YAML", as_environment)
    if path.suffix in _SUFFIXES and "@EXPLICIT" not in text:
        return OtherFile(REQUIREMENTS.what, as_environment)
    if found := lock_format(path, text):
        hint = f"name it as the lock in the recipe: lock: {name}; then builder lock imports it"
        return OtherFile(found.what, hint)
    if re.search(r"(?m)^build_dependencies:", text):
        hint = "name the file beside it: environment: requirements.txt"
        return OtherFile("mlflow's python_env.yaml", hint)
    if re.search(r"(?m)^dependencies:", text):
        return OtherFile("an environment file", as_environment)
    return None


def relock_command(path: Path) -> str:
    """Return what to do after a change of the requirements that a lock was made from."""
    return str(_TABLES["relock"].get(path.name, f"update {path.name} with the tool that wrote it"))


def export_command(path: Path) -> str:
    """Return the command that exports a lock of poetry, pdm or pipenv; empty for other files."""
    return _EXPORTS[path.name][1] if path.name in _EXPORTS else ""
