"""The size of the cache (``builder cache info``), and what ``builder cache prune`` removes.

What takes space is removed item by item, the least recently used first: blobs, SIFs, unpacked
images, incomplete downloads, git repositories, tools, and uv's cache. All of them are made or
downloaded again when they are needed. The time of last use is the modification time of a blob's
fingerprint, which each use sets (:mod:`builder.core.store.fingerprints`), of the record of a SIF's
digest, and of an unpacked image's folder (:mod:`builder.core.store.unpacked`). For the others it is
the time when they were written. Access times are not used: most file systems do not keep them.
:data:`builder.core.store.folders.FOLDERS` has a rule for each folder.

Three things stay:

- a file with a second name, because its removal frees nothing: ``dist/`` and other layouts hold
hard links
- an unpacked image that a process uses, which holds its lock
- below a size, and of archives of packages, what was used after the oldest running command began
  (:mod:`builder.core.store.running`)
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.core.text import human_bytes

from .blobs import Store, seen_of
from .folders import FOLDERS, CacheFolders, PruneRule
from .running import oldest_running
from .unpacked import KEPT_DAYS, prune_unpacked, remove_unless_used
from .walk import Stuck, bottom_up, try_to_remove

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Usage:
    """The number and size of the files in one folder of the cache."""

    name: str
    files: int
    """The number of files."""
    size: int
    """The sum of their sizes in bytes."""


def usage(cache: Path) -> list[Usage]:
    """Return the usage of each folder of a cache, sorted by name; empty if there is no cache."""
    if not cache.is_dir():
        return []
    found = []
    for folder in sorted(p for p in cache.iterdir() if p.is_dir()):
        # a file with several names (unpacked images share files) takes its space once
        sizes = {(info.st_dev, info.st_ino): info.st_size for _, _, info in files_below(folder)}
        found.append(Usage(folder.name, len(sizes), sum(sizes.values())))
    return found


def cache_size(cache: Path) -> int:
    """Return the bytes of all files of a cache."""
    return sum(folder.size for folder in usage(cache))


def files_below(folder: Path) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield everything in a tree that is no folder: its open folder, name and properties."""
    for level in bottom_up(folder):
        for name in level.files:
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                yield level.fd, name, os.stat(name, dir_fd=level.fd, follow_symlinks=False)


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
    """The items to remove so that a cache has a size."""

    items: tuple[Item, ...]
    """The least recently used one first."""
    before: int
    """Bytes of the cache before."""


def plan_removal(cache: Path, max_size: int | None, days: float = math.inf) -> Removal:
    """Return the items to remove so that the cache has ``max_size`` bytes at most.

    The rest may be larger: then everything else is in use. Without a size: what was not used for
    some days, and unpacked images that were not used for a day.
    """
    before, now = cache_size(cache), time.time()
    if max_size is None:
        oldest = {"rootfs": now - min(days, KEPT_DAYS) * 86400}
        old = (i for i in _items(cache) if i.last_used < oldest.get(i.kind, now - days * 86400))
        return Removal(tuple(old), before)
    removed: list[Item] = []
    too_many = before - max_size
    if too_many > 0:
        for item in sorted(_unused(cache), key=lambda item: (item.last_used, item.paths)):
            if too_many <= 0:
                break
            removed.append(item)
            too_many -= item.size
    return Removal(tuple(removed), before)


def plan_packages(cache: Path) -> Removal:
    """Return the archives of packages: a build that finds its layers in the cache needs none."""
    archives = (i for i in _unused(cache) if i.kind == "blobs" and _is_archive(i.paths[0]))
    return Removal(tuple(archives), cache_size(cache))


def _unused(cache: Path) -> Iterator[Item]:
    """Return what no command has used since the oldest one that still runs began."""
    began = oldest_running(cache) or math.inf
    return (item for item in _items(cache) if item.last_used < began)


def prune(
    cache: Path,
    tmpdir: Path,
    days: float | None,
    limit: int | None,
    stuck: Stuck = bool,
    *,
    packages: bool = False,
) -> int:
    """Remove what killed builds left, and what was not used recently; return the bytes freed.

    Lock files stay, because another build may hold one, and so do the records of what was published
    and not read back: without them a later publish would take it for verified.

    Args:
        cache: the cache folder.
        tmpdir: the folder for temporary files.
        days: remove what was last used more than this many days ago; None removes everything else.
        limit: instead, the bytes that the cache may have.
        stuck: receives each path that cannot be removed.
        packages: instead, remove the archives of packages.
    """
    freed = Store(cache).sweep(tmpdir, CacheFolders(cache).rootfs, stuck=stuck)
    if not cache.is_dir():
        return freed
    if packages:
        return freed + remove_items(cache, plan_packages(cache), stuck)
    if limit is not None:
        return freed + remove_items(cache, plan_removal(cache, limit), stuck)
    if days is None:
        before = cache_size(cache)
        _prune_everything(cache, stuck)
        return freed + before - cache_size(cache)
    removal = plan_removal(cache, None, days)
    for folder in FOLDERS:
        if folder.rule == PruneRule.FILES:
            _prune_files(cache / folder.name, time.time() - days * 86400)
    return freed + remove_items(cache, removal, stuck)


def remove_items(cache: Path, removal: Removal, stuck: Stuck = bool) -> int:
    """Remove the items of a plan, unless they are used by now, and return the bytes freed."""
    for item in removal.items:
        if item.kind == "blobs" and _was_used_since(item):
            continue
        for path in item.paths:
            if item.kind == "rootfs":
                remove_unless_used(path, stuck)
            elif item.kind == "uv":
                _prune_uv(path, stuck)
            else:
                try_to_remove(path, stuck)
    for folder in FOLDERS:
        if folder.rule == PruneRule.RECORDS:
            _prune_records(cache / folder.name)
    freed = removal.before - cache_size(cache)
    log.info("pruned %s: %d items, %s", cache, len(removal.items), human_bytes(freed))
    return freed


def _was_used_since(blob: Item) -> bool:
    """Return whether a command that began in the meantime has used a blob, or removed it."""
    try:
        return _last_used(blob.paths[0]) > blob.last_used
    except (OSError, ValueError):
        return True


def _items(cache: Path) -> Iterator[Item]:
    folders = CacheFolders(cache)
    for path in folders.blobs.glob("*"):
        if path.suffix != ".seen":
            with contextlib.suppress(OSError):  # another process removed it
                yield from _item("blobs", path, _last_used(path), seen_of(path))
    for folder in FOLDERS:
        if folder.rule == PruneRule.ENTRIES:
            for path in (cache / folder.name).glob("*"):
                with contextlib.suppress(OSError):
                    uses = (path, folders.sif_record(path))
                    times = [use.lstat().st_mtime for use in uses if use.exists()]
                    yield from _item(folder.name, path, max(times, default=0.0))
    with contextlib.suppress(OSError):  # as a whole: its files refer to each other
        yield from _item("uv", folders.uv, (folders.uv / "CACHEDIR.TAG").stat().st_mtime)
    yield from _unpacked(folders.rootfs)


def _item(kind: str, path: Path, used: float, *more: Path) -> Iterator[Item]:
    """Yield a folder, or a file that no other name refers to, with files that belong to it."""
    info = path.lstat()
    if stat.S_ISDIR(info.st_mode):
        yield Item(kind, (path,), _freed(path, Counter()), used)
    elif stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
        yield Item(kind, (path, *more), info.st_size, used)


def _unpacked(rootfs: Path) -> Iterator[Item]:
    """Yield the unpacked images and layers, the least recently used first.

    They share files. A file's size counts where its last name is removed.
    """
    names: Counter[tuple[int, int]] = Counter()
    found: list[tuple[float, Path]] = []
    for path in rootfs.glob("[!.]*"):
        with contextlib.suppress(OSError):  # another process removed it
            found.append((path.stat().st_mtime, path))
    for used, path in sorted(found):
        with contextlib.suppress(OSError):
            yield Item("rootfs", (path,), _freed(path, names), used)


def _freed(tree: Path, names: Counter[tuple[int, int]]) -> int:
    """Return the bytes freed by removing this tree: files whose last name is in it.

    ``names`` counts their names in trees that are removed before, and is updated.
    """
    freed = 0
    for _, _, info in files_below(tree):
        inode = info.st_dev, info.st_ino
        names[inode] += 1
        freed += info.st_size * (names[inode] == info.st_nlink)
    return freed


def _prune_everything(cache: Path, stuck: Stuck) -> None:
    folders = CacheFolders(cache)
    for folder in cache.iterdir():
        if folder == folders.rootfs:
            prune_unpacked(folder, stuck)
            with contextlib.suppress(OSError):  # images that are in use stay
                folder.rmdir()
        elif folder.is_dir() and folder not in (folders.locks, folders.unverified):
            try_to_remove(folder, stuck)


def _last_used(blob: Path) -> float:
    """Return the time of a blob's last use, in seconds since 1970."""
    return max(path.stat().st_mtime for path in (blob, seen_of(blob)) if path.exists())


#: In canonical JSON. A text of the record cannot match, because its quotes are escaped.
_BLOB = re.compile(rb'"(?:digest|wheel)":"(sha256:[0-9a-f]{64})"')


#: How wheels and ``.conda`` (zip), ``.tar.bz2`` and ``.deb`` begin. No layer and no document does.
_ARCHIVES = (b"PK\x03\x04", b"BZh", b"!<arch>\n")


def _is_archive(blob: Path) -> bool:
    """Return whether a blob is the archive of a package."""
    with contextlib.suppress(FileNotFoundError), blob.open("rb") as file:
        return file.read(8).startswith(_ARCHIVES)
    return False


def _prune_records(folder: Path) -> None:
    """Remove the records that name a blob which the cache does not have."""
    store = Store(folder.parent)
    for record in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            digests = _BLOB.findall(record.read_bytes())
            if not all(store.path(digest.decode()).exists() for digest in digests):
                record.unlink()


def _prune_files(folder: Path, oldest: float) -> None:
    for fd, name, info in files_below(folder):
        if stat.S_ISREG(info.st_mode) and info.st_mtime < oldest:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)


def _prune_uv(folder: Path, stuck: Stuck) -> None:
    """Empty uv's cache unless uv runs now, that is, holds the lock of its cache."""
    with contextlib.suppress(OSError), (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in folder.iterdir():
            if path.is_dir():
                try_to_remove(path, stuck)
        # last: after an interruption the cache still counts as old
        (folder / "CACHEDIR.TAG").unlink()
