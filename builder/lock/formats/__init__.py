"""Reads lock files of other tools into packages of builder's own lock.

Each module reads one format and is pure: it reads the file, asks no network, and writes nothing.

    path ──lock_format──▶ ForeignFormat ──read_foreign──▶ ForeignLock(packages, sources, pinned, ...)

The module of a format has its name in :data:`builder.lock.othertools.FORMATS`, and a function
``read(path, target)``. If the format locks wheels only, it also has ``requires_python(path)``: the
Pythons that the lock is for, as a specifier.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from builder.core.errors import LockError
from builder.lock.othertools import CONDA_LOCK, FORMATS, ForeignFormat, export_command, lock_format

from .common import ForeignLock, LockTarget, check_groups, read_text

__all__ = ["ForeignLock", "LockTarget", "foreign_python", "read_foreign"]

log = logging.getLogger(__name__)

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
    log.info("%s is %s", path, found.what if found else "no lock file that builder knows")
    if found is None or found is CONDA_LOCK or found.has_python:
        return None
    return str(_module(found).requires_python(path))


def _module(found: ForeignFormat) -> ModuleType:
    return importlib.import_module(f"{__name__}.{found.name}")


def read_foreign(path: Path, target: LockTarget) -> ForeignLock:
    """Read the packages of a foreign lock for one target.

    Raises:
        LockError: the file is missing or damaged, is of an unknown or too new format, or has
            nothing for this platform, Python, group or environment. The message names the file and,
            where known, line and key.
    """
    found = lock_format(path, read_text(path))
    if found is CONDA_LOCK or found is None:
        hint = f"known formats: {', '.join(sorted(row.what for row in FORMATS))}"
        if command := export_command(path):
            hint = f"export it: {command}"
        if found is CONDA_LOCK:
            hint = "name it NAME.yml: a lock of conda-lock is used as it is"
        raise LockError(f"{path}: not a lock file that builder reads under this name", hint)
    if found.has_python:
        check_groups(path, target.recipe.groups, hint=_GROUPS_HINT)
    lock: ForeignLock = _module(found).read(path, target)
    return replace(lock, tool=found.what)
