"""The size of the cache (``builder cache info``), and the removal of what is old (``builder cache prune``).

:data:`builder.store.folders.FOLDERS` lists the folders and their rules. "Last used" is the modification time:
reading a record or a fingerprint sets it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.store.blobs import Store
from builder.store.folders import FOLDERS, CacheFolders, PruneRule
from builder.store.shared import blobs_in
from builder.store.unpacked import KEPT_DAYS, prune_unpacked
from builder.store.walk import Stuck, bottom_up, try_to_remove


@dataclass(frozen=True)
class Usage:
    """How much one folder of the cache holds."""

    name: str
    files: int
    """The number of files."""
    size: int
    """The sum of their sizes in bytes."""


def usage(cache: Path) -> list[Usage]:
    """What each folder of a cache holds, sorted by name; empty if there is no cache."""
    if not cache.is_dir():
        return []
    found = []
    for folder in sorted(p for p in cache.iterdir() if p.is_dir()):
        # a file with several names (unpacked images share files) takes its space once
        sizes = {(info.st_dev, info.st_ino): info.st_size for _, _, info in files_below(folder)}
        found.append(Usage(folder.name, len(sizes), sum(sizes.values())))
    return found


def files_below(folder: Path) -> Iterator[tuple[int, str, os.stat_result]]:
    """Everything in a tree that is no folder: the open folder that it is in, its name, and its properties."""
    for level in bottom_up(folder):
        for name in level.files:
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                yield level.fd, name, os.stat(name, dir_fd=level.fd, follow_symlinks=False)


def prune(cache: Path, days: float | None, stuck: Stuck = bool) -> int:
    """Removes files that were not used recently, and temporary files of killed builds.

    Unpacked images that no process uses are removed after a day already (:mod:`builder.store.unpacked`). Lock
    files stay, because another build may hold one, and so do the records of what was published and not
    read back: without them a later publish would take it for verified.

    Args:
        cache: the cache folder.
        days: remove what was last used more than this many days ago; None removes everything else.
        stuck: receives each path that cannot be removed.

    Returns:
        The bytes freed.
    """
    if not cache.is_dir():
        return 0
    before = sum(u.size for u in usage(cache))
    Store(cache).sweep(stuck=stuck)
    if days is None:
        _prune_everything(cache, stuck)
    else:
        _prune_old(cache, time.time() - days * 86400, stuck)
    return before - sum(u.size for u in usage(cache))


def _prune_everything(cache: Path, stuck: Stuck) -> None:
    folders = CacheFolders(cache)
    for folder in cache.iterdir():
        if folder == folders.rootfs:
            prune_unpacked(folder, None, stuck)
            with contextlib.suppress(OSError):  # images that are in use stay
                folder.rmdir()
        elif folder.is_dir() and folder not in (folders.locks, folders.unverified):
            try_to_remove(folder, stuck)


def _prune_old(cache: Path, oldest: float, stuck: Stuck) -> None:
    for folder in FOLDERS:
        remove_old = _RULES.get(folder.rule)
        if remove_old is not None:
            remove_old(cache / folder.name, oldest, stuck)


def _prune_blobs(folder: Path, oldest: float, _: Stuck) -> None:
    for blob in folder.glob("*/*"):
        if blob.suffix != ".seen" and last_used(blob) < oldest:
            blob.unlink(missing_ok=True)
            blob.with_name(blob.name + ".seen").unlink(missing_ok=True)


def last_used(blob: Path) -> float:
    """When a blob was last used, in seconds since 1970."""
    seen = blob.with_name(blob.name + ".seen")
    return max(p.stat().st_mtime for p in (blob, seen) if p.exists())


def prune_records(folder: Path, *_: object) -> None:
    """Removes the records that name a blob which the cache does not have."""
    store = Store(folder.parent)
    for record in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            if not all(store.path(digest).exists() for digest in blobs_in(record.read_bytes())):
                record.unlink()


def _prune_files(folder: Path, oldest: float, _: Stuck) -> None:
    for fd, name, info in files_below(folder):
        if stat.S_ISREG(info.st_mode) and info.st_mtime < oldest:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)


def _prune_entries(folder: Path, oldest: float, stuck: Stuck) -> None:
    for path in folder.glob("*"):
        if path.lstat().st_mtime >= oldest:
            continue
        try_to_remove(path, stuck)


def _prune_unpacked(folder: Path, oldest: float, stuck: Stuck) -> None:
    prune_unpacked(folder, max(oldest, time.time() - KEPT_DAYS * 86400), stuck)


def prune_uv(folder: Path, oldest: float, stuck: Stuck = bool) -> None:
    """Empties uv's cache unless uv runs now, that is, holds the lock of its cache."""
    try:
        if (folder / "CACHEDIR.TAG").stat().st_mtime >= oldest:
            return
        with (folder / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in folder.iterdir():
                if path.is_dir():
                    try_to_remove(path, stuck)
            (folder / "CACHEDIR.TAG").unlink()  # last: after an interruption the cache still counts as old
    except OSError:
        return  # uv has no cache, or uses it now


_RULES: dict[PruneRule, Callable[[Path, float, Stuck], None]] = {
    PruneRule.BLOBS: _prune_blobs,
    PruneRule.RECORDS: prune_records,
    PruneRule.FILES: _prune_files,
    PruneRule.ENTRIES: _prune_entries,
    PruneRule.UNPACKED: _prune_unpacked,
    PruneRule.UV: prune_uv,
}
