"""Locks between processes, also where the file system has none.

``flock`` fails on Lustre that is mounted without ``-o flock`` (ENOSYS) and on NFS without a lock
server (ENOLCK). With ``-o localflock`` it succeeds, and the processes of other hosts are not
excluded. So most work needs no lock to be right: every file is written under a unique name and
renamed. There a lock only saves two builds the same work, and :func:`file_lock` continues without.

A file that is read, changed and written again does need one: the index of an OCI layout, which
would lose the tag of another writer. :func:`writer_lock` then creates a file that only one process
can create::

    .lock           flock works: the kernel forgets the lock of a process that ends
    .lock.held      it does not: the file names its process, and is removed when that has ended
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .reading import text_of
from .temporary import has_ended, temporary_beside, temporary_name

#: Seconds between two attempts: the first pause, and the longest. Waiting in the kernel is no better: clients
#: of NFS ask their server again and again, too.
_PAUSES = (0.02, 0.5)
#: Seconds after which the ``.held`` of a process that cannot be seen from here counts as left behind.
ABANDONED_S = 600.0


@contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Hold a lock of a file, which is created; wait for other processes and threads.

    Yields:
        Whether the file system has locks. False: nothing is locked.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as e:
        if e.errno not in (errno.EROFS, errno.EACCES):
            raise
        yield False  # nobody changes what cannot be written to
        return
    try:
        yield _flock(fd)
    finally:
        with contextlib.suppress(OSError):  # a child process may have inherited the file
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold a lock as :func:`file_lock` does, on a file system without locks too."""
    with file_lock(path) as is_locked:
        if is_locked:
            yield
            return
        with _held(path.with_name(f"{path.name}.held")):
            yield


def _flock(fd: int) -> bool:
    pauses = _pauses()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except (BlockingIOError, PermissionError):  # some file systems return EACCES
            time.sleep(next(pauses))
        except OSError:
            return False


def _pauses() -> Iterator[float]:
    pause, longest = _PAUSES
    while True:
        yield pause
        pause = min(2 * pause, longest)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Create a file, and remove it at the end. Waits while another process has it."""
    mine = temporary_name()
    seen, since, pauses = "", time.monotonic(), _pauses()
    while not _create(path, mine):
        holder = text_of(path)  # empty: it has not written its name yet
        if holder != seen:
            seen, since = holder, time.monotonic()
        elif has_ended(holder) or time.monotonic() - since > ABANDONED_S:
            _break(path, holder)
            continue
        time.sleep(next(pauses))
    try:
        yield
    finally:
        if text_of(path) == mine:
            path.unlink(missing_ok=True)


def _create(path: Path, mine: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(fd, "w") as file:
        file.write(mine)
    return True


def _break(path: Path, holder: str) -> None:
    """Remove the file of a process that has ended, unless another one has created it again."""
    aside = temporary_beside(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if text_of(aside) != holder:
            with contextlib.suppress(OSError):  # a third process was faster
                path.hardlink_to(aside)
        aside.unlink()
