"""Keeps the cache below a size: removes what was used least recently (``builder cache prune --max-size``).

What takes space is removed: blobs, SIFs, unpacked images, incomplete downloads, git repositories and uv's
cache. All of them are made or downloaded again when they are needed. The time of last use is the modification
time of a blob's fingerprint, which each use sets (:mod:`builder.store.fingerprints`), of the record of a
SIF's digest, and of an unpacked image's folder (:mod:`builder.store.unpacked`). For the others it is the time
when they were written. Access times are not used: most file systems do not keep them.

Three things stay:

- a file with a second name, because its removal frees nothing: ``dist/`` and other layouts hold hard links
- an unpacked image that a process uses, which holds its lock
- what was used after the oldest running command began (:mod:`builder.store.running`)
"""

from __future__ import annotations

import contextlib
import math
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.store.folders import FOLDERS, CacheFolders, PruneRule
from builder.store.prune import files_below, last_used, prune_records, prune_uv, usage
from builder.store.running import oldest_running
from builder.store.unpacked import KEPT_DAYS, TreeName, remove_unless_used
from builder.store.walk import Stuck, try_to_remove


@dataclass(frozen=True, slots=True)
class Item:
    """Something that can be removed alone."""

    kind: str
    """The folder of the cache: ``blobs``."""
    paths: tuple[Path, ...]
    size: int
    """Bytes that its removal frees."""
    last_used: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed so that a cache has a size."""

    items: tuple[Item, ...]
    """The least recently used one first."""
    before: int
    """Bytes of the cache before."""

    @property
    def freed(self) -> int:
        """Bytes that are freed."""
        return sum(item.size for item in self.items)

    @property
    def left(self) -> int:
        """Bytes of the cache after it."""
        return self.before - self.freed


def plan_removal(cache: Path, max_size: int | None, days: float = math.inf) -> Removal:
    """What has to be removed so that the cache has ``max_size`` bytes at most; it removes nothing.

    The rest may be larger: then everything else is in use. Without a size: what was not used for some days.
    """
    if max_size is None:
        return _plan_by_age(cache, days)
    before = sum(folder.size for folder in usage(cache))
    removed: list[Item] = []
    too_many = before - max_size
    if too_many > 0:
        began = oldest_running(cache)
        items = (item for item in _items(CacheFolders(cache)) if began is None or item.last_used < began)
        for item in sorted(items, key=lambda item: (item.last_used, item.paths)):
            if too_many <= 0:
                break
            removed.append(item)
            too_many -= item.size
    return Removal(tuple(removed), before)


def _plan_by_age(cache: Path, days: float) -> Removal:
    before, now = sum(folder.size for folder in usage(cache)), time.time()
    oldest = {"rootfs": now - min(days, KEPT_DAYS) * 86400}
    items = _items(CacheFolders(cache))
    return Removal(tuple(i for i in items if i.last_used < oldest.get(i.kind, now - days * 86400)), before)


def remove_items(cache: Path, removal: Removal, stuck: Stuck = bool) -> int:
    """Removes what :func:`plan_removal` found; returns the bytes freed, without what is in use by now."""
    for item in removal.items:
        if item.kind == "blobs" and _was_used_since(item):
            continue
        for path in item.paths:
            if item.kind == "rootfs":
                remove_unless_used(path, stuck)
            elif item.kind == "uv":
                prune_uv(path, math.inf, stuck)
            else:
                try_to_remove(path, stuck)
    for folder in FOLDERS:
        if folder.rule == PruneRule.RECORDS:
            prune_records(cache / folder.name)
    return removal.before - sum(folder.size for folder in usage(cache))


def _was_used_since(blob: Item) -> bool:
    """Whether a command that began in the meantime has used a blob, or removed it."""
    try:
        return last_used(blob.paths[0]) > blob.last_used
    except (OSError, ValueError):
        return True


def _items(folders: CacheFolders) -> Iterator[Item]:
    for path in folders.blobs.glob("*"):
        if path.suffix != ".seen":
            with contextlib.suppress(OSError):  # another process removed it
                yield from _file("blobs", path, last_used(path), path.with_name(path.name + ".seen"))
    for path in folders.sif.glob("*"):
        with contextlib.suppress(OSError):
            times = [p.lstat().st_mtime for p in (path, folders.sif_record(path)) if p.exists()]
            yield from _file("sif", path, max(times))
    for path in folders.partial.glob("*"):
        with contextlib.suppress(OSError):
            yield from _file("partial", path, path.lstat().st_mtime)
    for path in folders.git.glob("*"):
        with contextlib.suppress(OSError):
            yield Item("git", (path,), _freed((path,)), path.lstat().st_mtime)
    with contextlib.suppress(OSError):  # as a whole: its files refer to each other
        yield Item("uv", (folders.uv,), _freed((folders.uv,)), (folders.uv / "CACHEDIR.TAG").stat().st_mtime)
    yield from _unpacked(folders.rootfs)


def _file(kind: str, path: Path, used: float, *more: Path) -> Iterator[Item]:
    """A file that no other name refers to, with files that belong to it."""
    info = path.lstat()
    if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
        yield Item(kind, (path, *more), info.st_size, used)


def _unpacked(rootfs: Path) -> Iterator[Item]:
    """The unpacked images, each with those that share its layers below the topmost."""
    groups: dict[object, list[Path]] = {}
    for path in sorted(rootfs.glob("[!.]*")):
        name = TreeName.parse(path.name)
        groups.setdefault((name.target, name.lower, name.uid) if name else path, []).append(path)
    for paths in groups.values():
        with contextlib.suppress(OSError):
            yield Item("rootfs", tuple(paths), _freed(paths), max(path.stat().st_mtime for path in paths))


def _freed(trees: tuple[Path, ...] | list[Path]) -> int:
    """The bytes of files all of whose names are in these trees."""
    names: Counter[tuple[int, int]] = Counter()
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for tree in trees:
        for _, _, info in files_below(tree):
            inode = info.st_dev, info.st_ino
            names[inode] += 1
            found[inode] = info.st_nlink, info.st_size
    return sum(size for inode, (links, size) in found.items() if names[inode] >= links)
