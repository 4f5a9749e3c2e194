"""Walks through folders of any depth: no recursion, no long paths, one open folder at a time.

A container can leave a tree of 100,000 levels in the cache. ``shutil.rmtree``, ``os.walk`` and
``Path.rglob`` of Python 3.11 end in RecursionError there, and paths are longer than the system
accepts. Here a folder is opened relative to its parent, and the walk returns through ``..``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Receives the path of a tree that cannot be removed.
Stuck = Callable[[Path], object]
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Level:
    """A folder, with what is directly in it."""

    fd: int
    """The open folder: for the ``dir_fd`` argument of functions in ``os``, until the walk
    continues.
    """
    identity: tuple[int, int]
    files: list[str] = field(default_factory=list)
    """Names of files, symlinks and everything else that is no folder."""
    folders: list[str] = field(default_factory=list)


def bottom_up(folder: Path, *, make_writable: bool = False) -> Iterator[Level]:
    """Yield all folders of a tree that this user can read, each after the folders in it.

    Args:
        folder: the tree; nothing is returned if there is no such folder.
        make_writable: give the user all permissions for each folder first.

    Raises:
        OSError: a folder was moved meanwhile, or (with ``make_writable``) belongs to another user.
    """
    try:
        fd = _open(folder, None, make_writable)
    except FileNotFoundError:
        return
    try:
        path = [_read(fd)]
        pending = [list(path[-1].folders)]
        while True:
            if pending[-1]:
                child = _open_or_none(pending[-1].pop(), fd, make_writable)
                if child is not None:
                    os.close(fd)
                    fd = child
                    path.append(_read(fd))
                    pending.append(list(path[-1].folders))
                continue
            path[-1].fd = fd
            yield path[-1]
            path.pop()
            pending.pop()
            if not path:
                return
            parent = os.open("..", FOLDER_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = parent
            if _identity(fd) != path[-1].identity:
                raise OSError(f"a folder in {folder} was moved while it was read")
    finally:
        os.close(fd)


def _open_or_none(name: str, parent: int, make_writable: bool) -> int | None:
    unreadable = () if make_writable else (PermissionError,)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, *unreadable):
        return _open(name, parent, make_writable)
    return None  # another process removed or replaced it, or this user cannot read it


def _open(name: str | Path, parent: int | None, make_writable: bool) -> int:
    try:
        fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    except PermissionError:
        if not make_writable:
            raise
        os.chmod(name, 0o700, dir_fd=parent)
        fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    try:
        if make_writable and os.fstat(fd).st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
        os.stat("..", dir_fd=fd)  # without the permission to search a folder there is no way back
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read(fd: int) -> Level:
    level = Level(fd, _identity(fd))
    with os.scandir(fd) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            (level.folders if is_folder else level.files).append(entry.name)
    return level


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def try_to_remove(folder: Path, stuck: Stuck = bool) -> bool:
    """Remove a folder as :func:`remove_tree` does; pass it to ``stuck`` if that fails."""
    try:
        remove_tree(folder)
    except OSError:
        stuck(folder)
        return False
    return True


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if its permissions forbid it, as in an unpacked root file system.

    Nothing happens if there is none. A file or symlink of that name is removed, too. Files may
    belong to this user's subordinate ids.

    Raises:
        OSError: a part of it belongs to another user, or a file system is mounted in it: a killed
            program may have left the mount of a folder of this host, whose files must stay.
    """
    try:
        _remove_own(folder)
    except PermissionError:
        from .subordinate import remove_mapped

        remove_mapped(folder)


def _remove_own(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    device = folder.stat().st_dev
    for level in bottom_up(folder, make_writable=True):
        if level.identity[0] != device:
            continue
        for name in level.files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=level.fd)
        for name in level.folders:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=level.fd)
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()
