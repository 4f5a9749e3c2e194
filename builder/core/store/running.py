"""Marks of the commands that use a cache now.

A command marks the cache with an empty file in ``locks/``, named after its process as temporary
files are. What was used after the oldest command that still runs began may be in use, so
:mod:`builder.core.store.prune` does not remove it. This needs no locks, because network file
systems may have none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from .folders import CacheFolders
from .temporary import temporary_name, writer_of

_SUFFIX = ".running"
#: Seconds for which a command of another host or container counts as running: its process cannot be seen.
ELSEWHERE_S = 86400


def mark_running(cache: Path) -> Callable[[], None]:
    """Mark a cache as used by this command and return a function that removes the mark.

    A cache that cannot be written to needs no mark.
    """
    mark = CacheFolders(cache).locks / f"{temporary_name()}{_SUFFIX}"
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def remove() -> None:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)

    return remove


def oldest_running(cache: Path, now: float | None = None) -> float | None:
    """Return the start of the oldest command that uses the cache, in seconds since 1970.

    None if there is none.

    This process does not count. Marks of killed commands are removed.
    """
    now = time.time() if now is None else now
    began = []
    for mark in CacheFolders(cache).locks.glob(f"*{_SUFFIX}"):
        writer = writer_of(mark.name)
        runs = writer and writer.is_running()
        if writer is None or (runs and writer.pid == os.getpid()):
            continue
        with contextlib.suppress(FileNotFoundError):
            time_ = mark.stat().st_mtime
            if time_ > now - ELSEWHERE_S if runs is None else runs:
                began.append(time_)
            else:
                mark.unlink(missing_ok=True)
    return min(began, default=None)
