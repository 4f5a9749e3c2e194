"""Reads lock files of other tools into packages of builder's own lock.

Each module reads one format and is pure: it reads the file, asks no network, and writes nothing.

    path ──foreign_format──▶ "uv" ──read_foreign──▶ ForeignLock(packages, sources, pinned, ...)

``packages`` have URL and hash. ``sources`` must be built. ``pinned`` have no URL or no hash: an index names
their files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.errors import LockError
from builder.lock.formats.common import choices, read_text
from builder.lock.formats.condalock import read_condalock
from builder.lock.formats.detect import export_command, foreign_format, foreign_python
from builder.lock.formats.explicit import read_explicit
from builder.lock.formats.foreign import (
    PIP_ONLY,
    TOOLS,
    ForeignLock,
    ForeignSource,
    Format,
    PinnedRequirement,
)
from builder.lock.formats.pixi import read_pixi
from builder.lock.formats.pylock import read_pylock
from builder.lock.formats.requirements import read_requirements
from builder.lock.formats.uvlock import read_uv
from builder.lock.wheels import ARCHITECTURES
from builder.model import MAIN

__all__ = [
    "PIP_ONLY",
    "ForeignLock",
    "ForeignSource",
    "Format",
    "PinnedRequirement",
    "export_command",
    "foreign_format",
    "foreign_python",
    "read_foreign",
]


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
    """Reads the packages of a foreign lock for one target.

    Args:
        path: the lock file.
        platform: conda's name of the target's platform, ``linux-64``.
        python_version: the target's Python (``3.11``, ``3.11.9``); required for the formats in ``PIP_ONLY``,
            ignored for the others, which lock a Python themselves.
        groups: the groups, extras or categories to take; empty: ``main``.
        environment: the environment of a ``pixi.lock``; None: ``default``.
        virtual: the target's virtual packages (``__glibc``: ``2.28``): which wheels fit.
        root: the project folder: a requirements file names no file outside of it; None: any.

    Raises:
        LockError: the file is missing or damaged, is of an unknown or too new format, or has nothing for this
            platform, Python, group or environment. The message names the file and, where known, line and key.
    """
    found = foreign_format(path, read_text(path))
    if found is None:
        command = export_command(path)
        raise LockError(
            f"{path}: not a lock file that builder reads",
            f"export it: {command}" if command else f"known formats: {', '.join(sorted(TOOLS.values()))}",
        )
    if platform not in ARCHITECTURES:
        raise LockError(
            f"{path}: builder does not build for {platform}", choices(platform, list(ARCHITECTURES))
        )
    if found == "pixi":
        _only_main(path, groups)
        return read_pixi(path, platform, environment, virtual)
    if found == "explicit":
        _only_main(path, groups)
        return read_explicit(path, platform)
    if found == "conda-lock":
        return read_condalock(path, platform, groups)
    if python_version is None:
        raise ValueError(f"{found} needs a version of Python")
    if found == "pylock":
        return read_pylock(path, platform, python_version, groups, virtual)
    if found == "uv":
        return read_uv(path, platform, python_version, groups, virtual)
    return read_requirements(path, platform, python_version, groups, root)


def _only_main(path: Path, groups: Sequence[str]) -> None:
    for group in groups:
        if group != MAIN:
            raise LockError(
                f"{path}: this format has no group {group!r}",
                "remove 'groups:' from the recipe; pixi's environments are chosen with 'lock_environment:'",
            )
