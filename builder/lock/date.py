"""The date of a lock. It is the creation time of the images that are built from the lock.

A date must not make two equal locks differ. So it comes from the sources if they have one: with
``conda.exclude_newer`` it is the time before which all conda packages were published. Otherwise the
day of locking is written into the lock once, and stays as long as a new solve returns the same
lock. It is the day and not the second, so that two machines that lock on one day write the same
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from builder.errors import LockError
from builder.lock.file import CREATED, digest_of, read_lock, write_lock
from builder.model import Lock
from builder.settings import MAX_EPOCH

#: Key of the lock's metadata: the exclude-newer time of the conda packages, also one of the command line.
SOLVED_BEFORE = "builder.solved-before"
#: The form of its value.
TIME = "%Y-%m-%dT%H:%M:%SZ"
_DAY = "%Y-%m-%dT00:00:00Z"


def replace_lock(lock: Lock, path: Path) -> Lock:
    """Write a new lock with its date.

    Raises:
        SpaceError, BuilderError: see :func:`builder.lock.file.write_lock`.
    """
    return write_lock(dated(lock, path), path)


def dated(lock: Lock, path: Path, now: datetime | None = None) -> Lock:
    """Return the lock with its date.

    Args:
        lock: a new one.
        path: where it will be written. If the lock there is the same but for its date, that date is
            kept.
        now: the time of locking; default: the current one.
    """
    now = now or datetime.now(UTC)
    custom = {key: text for key, text in lock.custom.items() if key != CREATED}
    cutoff = _seconds(custom.get(SOLVED_BEFORE, ""))
    if cutoff is not None and cutoff <= now.timestamp():
        return replace(lock, custom=custom)
    try:
        previous = read_lock(path)
    except LockError:
        previous = None  # there is none, or it is damaged and will be replaced
    if previous and CREATED in previous.custom:
        kept = replace(lock, custom={**custom, CREATED: previous.custom[CREATED]})
        if digest_of(kept, path) == previous.digest:
            return kept
    return replace(lock, custom={**custom, CREATED: now.strftime(_DAY)})


def lock_date(custom: Mapping[str, str]) -> int | None:
    """Return the date of a lock in seconds since 1970; None if it has none (one of another tool).

    Args:
        custom: the lock's metadata.

    Raises:
        LockError: the date is not a time from 1970 to 2106.
    """
    for key in (CREATED, SOLVED_BEFORE):
        text = custom.get(key, "")
        if not text:
            continue
        seconds = _seconds(text)
        if seconds is None:
            raise LockError(
                f"the lock's {key} {text[:40]!r} is not a time",
                "write 2026-11-01T00:00:00Z, or lock again",
            )
        return seconds
    return None


def _seconds(text: str) -> int | None:
    """Return seconds since 1970; None for a text that is not a time from 1970 to 2106."""
    try:
        time = datetime.fromisoformat(text)
        seconds = int((time.replace(tzinfo=UTC) if time.tzinfo is None else time).timestamp())
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds <= MAX_EPOCH else None
