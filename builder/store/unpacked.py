"""Unpacked images in the cache: which are in use, and which are removed.

An image with many files is unpacked in seconds, but takes gigabytes. So of each target only the images that
were used last are kept::

    rootfs/TARGET.LOWER.DIGEST-UID    an image
    rootfs/TARGET.LOWER.lower-UID     its layers without the topmost; images share these files as hard links

``LOWER`` is a hash of all layers but the topmost. A process that runs an image holds a lock on its folder
until the process ends. No folder with a lock is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from builder.store.temporary import temporary_beside
from builder.store.walk import Stuck, try_to_remove

#: Unpacked images that are kept of each target and user: the last two that were used.
KEPT = 2
#: ``builder cache prune`` removes unpacked images that were not used for this many days, although other files
#: of the cache stay longer: they take most space and are made again in seconds.
KEPT_DAYS = 1.0
_NAME = re.compile(r"(?P<target>.+)\.(?P<lower>[0-9a-f]{16})\.(?P<image>[0-9a-f]{24}|lower)-(?P<uid>\d+)")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Folders whose lock this process holds, and the open folder of each.
_held: dict[Path, int] = {}


@dataclass(frozen=True, slots=True)
class TreeName:
    """The name of an unpacked image's folder."""

    target: str
    lower: str
    """16 hex digits: all layers but the topmost."""
    uid: int
    """Whose files they are."""
    image: str = "lower"
    """24 hex digits of the image's digest, or ``lower``."""

    def __str__(self) -> str:
        return f"{self.target}.{self.lower}.{self.image}-{self.uid}"

    @classmethod
    def parse(cls, name: str) -> TreeName | None:
        """The parts of a folder's name; None for other names."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(found["target"], found["lower"], int(found["uid"]), found["image"])


def hold(folder: Path) -> bool:
    """Marks an unpacked image as used now, and keeps it from being removed until this process ends.

    Returns:
        False: there is no such folder.
    """
    if folder in _held:
        os.utime(_held[folder])
        return True
    try:
        fd = os.open(folder, _FLAGS)
    except FileNotFoundError:
        return False
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        is_same = os.path.samestat(folder.stat(), os.fstat(fd))
    except FileNotFoundError:
        is_same = False  # removed before it was locked
    if not is_same:
        os.close(fd)
        return False
    os.utime(fd)  # `builder cache prune` goes by the time of last use
    _held[folder] = fd
    return True


def remove_unless_used(folder: Path, stuck: Stuck = bool) -> bool:
    """Removes an unpacked image; returns False if a process uses it, or the user may not remove it.

    Where the file system has no locks, an image counts as used for :data:`KEPT_DAYS` after its last start.
    """
    try:
        fd = os.open(folder, _FLAGS)
    except OSError:
        return False
    try:
        if _is_used(fd):
            return False
        temporary = temporary_beside(folder)
        folder.replace(temporary)  # nobody finds half a tree under the name
    except OSError:
        return False
    finally:
        os.close(fd)
    return try_to_remove(temporary, stuck)


def _is_used(fd: int) -> bool:
    """Whether a process holds an unpacked image; else this process holds it alone."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return os.fstat(fd).st_mtime > time.time() - KEPT_DAYS * 86400
    return False


def keep_last(rootfs: Path, target: str, uid: int) -> None:
    """Removes the images of a target and user that are not among the last :data:`KEPT` that were used."""
    trees = [(name, path) for name, path in _trees(rootfs) if (name.target, name.uid) == (target, uid)]
    images = [(name, path) for name, path in trees if name.image != "lower"]
    images.sort(key=lambda item: item[1].stat().st_mtime, reverse=True)
    kept = {name.lower for name, path in images[:KEPT]}
    kept |= {name.lower for name, path in images[KEPT:] if not remove_unless_used(path)}
    for name, path in trees:
        if name.image == "lower" and name.lower not in kept:
            remove_unless_used(path)


def prune_unpacked(rootfs: Path, stuck: Stuck) -> None:
    """Remove all unpacked images that no process uses; ``stuck`` receives what cannot be removed."""
    for path in rootfs.glob("[!.]*"):  # a process that runs writes what is hidden
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            remove_unless_used(path, stuck)


def _trees(rootfs: Path) -> list[tuple[TreeName, Path]]:
    """The unpacked images in their folder, of all targets and users."""
    found = []
    for path in rootfs.glob("*"):
        name = TreeName.parse(path.name)
        if name is not None:
            found.append((name, path))
    return found
