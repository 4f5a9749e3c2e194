"""Unpacked images in the cache: their use and their removal.

An image with many files is unpacked in seconds, but takes gigabytes. So each layer is unpacked
once, and the files of images are hard links to those of layers::

    rootfs/TARGET.LAYERS-UID    an image; LAYERS is a hash of all its layers
    rootfs/BLOB-UID             a layer, by the digest of its blob

Of each target only the images that were used last are kept, and only layers that share files with
an image. A process that runs an image holds a lock on its folder until the process ends, and one
that links to a layer's files a lock on that. No folder with a lock is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from .files import mark_used
from .temporary import temporary_beside
from .walk import FOLDER_FLAGS, Stuck, try_to_remove

#: Unpacked images that are kept of each target and user: the last two that were used.
KEPT = 2
#: ``builder cache prune`` removes unpacked images that were not used for this many days, although other files
#: of the cache stay longer: they take most space and are made again in seconds.
KEPT_DAYS = 1.0
_HEX = "[0-9a-f]"
#: Folders whose lock this process holds, and the open folder of each.
_held: dict[Path, int] = {}


def image_folder(rootfs: Path, target: str, digests: Iterable[str], uid: int) -> Path:
    """Return the folder of an image of a target; the files belong to the user ``uid``.

    Args:
        rootfs: the folder of all unpacked images.
        target: letters, digits, and ``._-``.
        digests: of the blobs of all layers. They are verified: an image may list another one's
            diff_ids.
        uid: the user.
    """
    key = hashlib.sha256(" ".join(digests).encode()).hexdigest()[:24]
    return rootfs / f"{target}.{key}-{uid}"


def layer_folder(rootfs: Path, digest: str, uid: int) -> Path:
    """Return the folder of a layer by its blob's digest; its files belong to the user ``uid``."""
    return rootfs / f"{digest.removeprefix('sha256:')}-{uid}"


def hold(folder: Path) -> bool:
    """Mark an unpacked image as used now, and keep it from being removed until this process ends.

    Returns:
        False: there is no such folder.
    """
    if folder in _held:
        mark_used(_held[folder])
        return True
    fd = open_used(folder)
    if fd is not None:
        _held[folder] = fd
    return fd is not None


def open_used(folder: Path) -> int | None:
    """Mark an unpacked image or layer as used now, and open it: while open, it is not removed.

    Returns:
        The descriptor; None: there is no such folder.
    """
    try:
        fd = os.open(folder, FOLDER_FLAGS)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_SH)
    with contextlib.suppress(FileNotFoundError):  # removed before it was locked
        if os.path.samestat(folder.stat(), os.fstat(fd)):
            mark_used(fd)
            return fd
    os.close(fd)
    return None


def remove_unless_used(folder: Path, stuck: Stuck = bool) -> bool:
    """Remove an unpacked image or layer and return False if it is in use or cannot be removed.

    Where the file system has no locks, it counts as in use for :data:`KEPT_DAYS` after its last
    use.
    """
    try:
        fd = os.open(folder, FOLDER_FLAGS)
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
    """Return whether a process uses an unpacked image or layer; else this process locks it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return os.fstat(fd).st_mtime > time.time() - KEPT_DAYS * 86400
    return False


def keep_last(rootfs: Path, target: str, uid: int) -> None:
    """Remove the images of a target and user, but the last :data:`KEPT` that were used.

    Then it removes the user's layers that no image shares files with.
    """
    images = list(rootfs.glob(f"{target}.{_HEX * 24}-{uid}"))
    images.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for image in images[KEPT:]:
        remove_unless_used(image)
    for layer in rootfs.glob(f"{_HEX * 64}-{uid}"):
        if not _is_shared(layer):
            remove_unless_used(layer)


def _is_shared(layer: Path) -> bool:
    """Return whether an image has a file of a layer. Images are complete when they get a name."""
    # another process may remove it
    with contextlib.suppress(FileNotFoundError), os.scandir(layer) as files:
        return any(file.stat().st_nlink > 1 for file in files)
    return False


def prune_unpacked(rootfs: Path, stuck: Stuck) -> None:
    """Remove all unpacked images and layers that no process uses.

    ``stuck`` receives what cannot be removed.
    """
    for path in rootfs.glob("[!.]*"):  # a process that runs writes what is hidden
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            remove_unless_used(path, stuck)
