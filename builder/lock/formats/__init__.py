"""Reads lock files of other tools into packages of builder's own lock.

Each module reads one format and is pure: it reads the file, asks no network, and writes nothing.

    path ──lock_format──▶ "uv" ──read_foreign──▶ ForeignLock(packages, sources, pinned, ...)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from builder.core.errors import LockError
from builder.lock.othertools import TOOLS, Format, export_command, lock_format

from .common import check_groups, read_text, read_toml
from .explicit import read_explicit
from .foreign import ForeignLock, LockTarget
from .pixi import read_pixi
from .pylock import parse_pylock, read_pylock
from .requirements import read_requirements
from .uvlock import read_uv

__all__ = ["ForeignLock", "LockTarget", "foreign_python", "read_foreign"]

log = logging.getLogger(__name__)

_READERS: dict[Format, Callable[[Path, LockTarget], ForeignLock]] = {
    "pixi": read_pixi,
    "explicit": read_explicit,
    "pylock": read_pylock,
    "uv": read_uv,
    "requirements": read_requirements,
}
#: Formats that lock conda packages, so that they have a Python; the others lock wheels only.
_WITH_PYTHON = ("pixi", "explicit")
_GROUPS_HINT = (
    "remove 'groups:' from the recipe; pixi's environments are chosen with 'lock_environment:'"
)


def foreign_python(path: Path) -> str | None:
    """Return the Pythons that a foreign lock is for, as a specifier (``>=3.11``, or empty: any).

    None if the lock contains its Python (formats with conda packages).

    Raises:
        LockError: as :func:`read_foreign`.
    """
    found = lock_format(path, read_text(path))
    log.info("%s is %s", path, TOOLS[found] if found else "no lock file that builder knows")
    if found not in _READERS or found in _WITH_PYTHON:
        return None
    if found == "uv":
        return str(read_toml(path).get("requires-python") or "")
    if found == "pylock":
        return str(parse_pylock(path).requires_python or "")
    return ""


def read_foreign(path: Path, target: LockTarget) -> ForeignLock:
    """Read the packages of a foreign lock for one target.

    Raises:
        LockError: the file is missing or damaged, is of an unknown or too new format, or has
            nothing for this platform, Python, group or environment. The message names the file and,
            where known, line and key.
    """
    found = lock_format(path, read_text(path))
    if found not in _READERS:
        hint = f"known formats: {', '.join(sorted(TOOLS.values()))}"
        if command := export_command(path):
            hint = f"export it: {command}"
        if found is not None:
            hint = "name it NAME.yml: a lock of conda-lock is used as it is"
        raise LockError(f"{path}: not a lock file that builder reads under this name", hint)
    if found in _WITH_PYTHON:
        check_groups(path, target.recipe.groups, hint=_GROUPS_HINT)
    return _READERS[found](path, target)
