"""Reads lock files of other tools into packages of builder's own lock.

Each module reads one format and is pure: it reads the file, asks no network, and writes nothing.

    path ──foreign_format──▶ "uv" ──read_foreign──▶ ForeignLock(packages, sources, pinned, ...)

``packages`` have URL and hash. ``sources`` must be built. ``pinned`` have no URL: :func:`resolve_hashes` asks
the index for the file that has one of the locked hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.lock.formats.detect import foreign_format, foreign_python
from builder.lock.formats.foreign import (
    MAIN,
    PIP_ONLY,
    ForeignLock,
    ForeignSource,
    Format,
    PinnedRequirement,
)

__all__ = [
    "MAIN",
    "PIP_ONLY",
    "ForeignLock",
    "ForeignSource",
    "Format",
    "PinnedRequirement",
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

    Raises:
        LockError: the file is missing or damaged, is of an unknown or too new format, or has nothing for this
            platform, Python, group or environment. The message names the file and, where known, line and key.
    """
    raise NotImplementedError
