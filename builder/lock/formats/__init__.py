"""Reads lock files of other tools into packages of builder's own lock.

Each module reads one format and is pure: it reads the file, asks no network, and writes nothing.

    path ──lock_format──▶ "uv" ──read_foreign──▶ ForeignLock(packages, sources, pinned, ...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.config.merge import choices
from builder.errors import LockError
from builder.lock.formats.common import read_text, read_toml
from builder.lock.formats.explicit import read_explicit
from builder.lock.formats.foreign import ForeignLock
from builder.lock.formats.pixi import read_pixi
from builder.lock.formats.pylock import parsed as parsed_pylock
from builder.lock.formats.pylock import read_pylock
from builder.lock.formats.requirements import read_requirements
from builder.lock.formats.uvlock import read_uv
from builder.lock.markers import ARCHITECTURES
from builder.lock.othertools import TOOLS, export_command, lock_format
from builder.model import MAIN

__all__ = ["ForeignLock", "foreign_python", "read_foreign"]

#: Formats without a Python of their own: they lock wheels only.
_PIP_ONLY = frozenset({"pylock", "uv", "requirements"})


def foreign_python(path: Path) -> str | None:
    """Return the Pythons that a foreign lock is for, as a specifier (``>=3.11``, or empty: any).

    None if the lock contains its Python (formats with conda packages).

    Raises:
        LockError: as :func:`read_foreign`.
    """
    found = lock_format(path, read_text(path))
    if found not in _PIP_ONLY:
        return None
    if found == "uv":
        return str(read_toml(path).get("requires-python") or "")
    if found == "pylock":
        return str(parsed_pylock(path).requires_python or "")
    return ""


def read_foreign(
    path: Path,
    platform: str,
    *,
    python_version: str | None,
    groups: Sequence[str] = (),
    environment: str | None = None,
    virtual: Mapping[str, str],
    root: Path | None = None,
) -> ForeignLock:
    """Read the packages of a foreign lock for one target.

    Args:
        path: the lock file.
        platform: conda's name of the target's platform, ``linux-64``.
        python_version: the target's Python (``3.11``, ``3.11.9``); required for locks of wheels,
            ignored for the others, which lock a Python themselves.
        groups: the groups, extras or categories to take; empty: ``main``.
        environment: the environment of a ``pixi.lock``; None: ``default``.
        virtual: the target's virtual packages (``__glibc``: ``2.28``): which wheels fit.
        root: the project folder: a requirements file names no file outside of it; None: any.

    Raises:
        LockError: the file is missing or damaged, is of an unknown or too new format, or has
            nothing for this platform, Python, group or environment. The message names the file and,
            where known, line and key.
    """
    found = lock_format(path, read_text(path))
    if found is None or found == "conda-lock":
        command = export_command(path)
        hint = (
            f"export it: {command}"
            if command
            else f"known formats: {', '.join(sorted(TOOLS.values()))}"
        )
        if found is not None:
            hint = "name it NAME.yml: a lock of conda-lock is used as it is"
        raise LockError(f"{path}: not a lock file that builder reads under this name", hint)
    if platform not in ARCHITECTURES:
        raise LockError(
            f"{path}: builder does not build for {platform}", choices(platform, list(ARCHITECTURES))
        )
    if found == "pixi":
        _only_main(path, groups)
        return read_pixi(path, platform, environment)
    if found == "explicit":
        _only_main(path, groups)
        return read_explicit(path, platform)
    if python_version is None:
        raise ValueError(f"{found} needs a version of Python")
    if found == "pylock":
        return read_pylock(path, platform, python_version, groups, virtual)
    if found == "uv":
        return read_uv(path, platform, python_version, groups, virtual, root)
    return read_requirements(path, platform, python_version, groups, root)


def _only_main(path: Path, groups: Sequence[str]) -> None:
    for group in groups:
        if group != MAIN:
            raise LockError(
                f"{path}: this format has no group {group!r}",
                "remove 'groups:' from the recipe; pixi's environments are chosen with 'lock_environment:'",
            )
