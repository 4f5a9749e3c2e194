"""Names of temporary files; they tell a later build whether their process still runs.

A name holds the system, the process and a random number::

    blob-3f9a0c11d2e4b567-4711-9f86d081884c7d65
             system        pid      random

A process ID means something in one *pid namespace* only, and every container has its own. So the
system is a hash of the namespace, of the boot of its kernel and of the host name. Two containers
with one host name, and two hosts that share a cache, are different systems. No lock is needed,
because network file systems may have none.

:func:`remove_left_behind` removes the files of processes that were killed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .walk import Stuck, try_to_remove

_NAME = re.compile(r"(?:\A|\.)(?:blob|build)-([0-9a-f]{16})-(\d+)-[0-9a-f]{16}")
#: Bytes of a file's name that are part of its temporary name: a name has at most 255.
_KEPT = 120


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that made a temporary file."""

    system: str
    pid: int

    def is_running(self) -> bool | None:
        """Return whether it still runs; None: not known, because it is of another system."""
        if self.system != _system():
            return None
        try:
            with contextlib.suppress(PermissionError, OverflowError):
                os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def temporary_name(kind: str = "blob") -> str:
    """Return a new unique name for a ``blob`` or ``build`` that this process writes."""
    return f"{kind}-{_system()}-{os.getpid()}-{os.urandom(8).hex()}"


def temporary_beside(path: Path) -> Path:
    """Return a unique hidden name in the folder of ``path``: write there, then rename it."""
    name = os.fsdecode(os.fsencode(path.name)[:_KEPT])
    return path.parent / f".{name}.{temporary_name()}.tmp"


@contextmanager
def removed_after(path: Path) -> Iterator[Path]:
    """Yield a temporary name; what has it at the end is removed, unless it was moved elsewhere."""
    try:
        yield path
    finally:
        # rename(2) leaves both names if they are links to one file
        path.unlink(missing_ok=True)


@contextmanager
def claimed(path: Path) -> Iterator[Path]:
    """Yield a name for an incomplete file of this process, with what earlier ones left of it.

    Renaming decides which process gets the file: two never append to it, also without locks. At the
    end the file has its name ``path`` again, unless it was moved elsewhere. That of a killed
    process is taken over by the next one of the same system.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.parent / f"{path.name}.{temporary_name()}"
    claims = path.parent.glob(f"{path.name}.blob-*")
    for left in (path, *(claim for claim in claims if has_ended(claim.name))):
        with contextlib.suppress(FileNotFoundError):  # there is none, or another process was faster
            left.rename(mine)
            os.utime(mine)  # it is in use now: builder cache prune leaves it
            break
    try:
        yield mine
    finally:
        with contextlib.suppress(FileNotFoundError):
            mine.rename(path)


def writer_of(name: str) -> Writer | None:
    """Return the process that made a file with a name of this module; None for other names."""
    found = _NAME.search(name)
    return Writer(found[1], int(found[2])) if found else None


def has_ended(name: str) -> bool:
    """Return whether a name is of a process of this system that no longer runs."""
    writer = writer_of(name)
    return writer is not None and writer.is_running() is False


@cache
def _system() -> str:
    """Return the system in which this process's ID is valid; random if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return os.urandom(8).hex()
    return hashlib.sha256(f"{os.uname().nodename} {boot} {namespace}".encode()).hexdigest()[:16]


#: After this time any temporary file is taken for left behind, in seconds: no build takes so long.
ABANDONED_S = 7 * 86400
#: The system's folders for temporary files. A user's subordinate ids may have no way into builder's own.
SHARED_FOLDERS = (Path(os.environ.get("TMPDIR") or "/tmp"), Path("/var/tmp"), Path("/tmp"))  # noqa: S108


@contextmanager
def temporary_folder(parent: Path, mode: int) -> Iterator[Path]:
    """Yield a new folder with these permissions, which is removed at the end of the context.

    If this process is killed, the next command removes it.
    """
    folder = parent / temporary_name("build")
    folder.mkdir(mode=0o700, parents=True)
    folder.chmod(mode)  # independent of the umask
    try:
        yield folder
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT) and not e.filename:  # a write names no file
            e.filename = str(folder)
        raise
    finally:
        try_to_remove(folder)


def remove_left_behind(folder: Path, stuck: Stuck = bool) -> int:
    """Remove the temporary files and folders in ``folder`` whose process was killed.

    Whether a process of another host or container runs cannot be known, and a process ID is used
    again. So files that were not changed for a week are removed, too.

    Args:
        folder: its files of other users are skipped.
        stuck: receives what cannot be removed.

    Returns:
        The bytes freed (folders count only by their own size).
    """
    freed = 0
    try:
        paths = list(folder.iterdir())
    except OSError:
        return 0
    for path in paths:
        with contextlib.suppress(OSError):  # removed meanwhile
            if _is_left_behind(path):
                freed += path.lstat().st_size * try_to_remove(path, stuck)
    return freed


def _is_left_behind(path: Path) -> bool:
    if writer_of(path.name) is None or os.geteuid() not in (0, path.lstat().st_uid):
        return False
    info = path.lstat()
    # unpacking sets the time of a folder to the one in an archive, but not st_ctime
    is_old = max(info.st_mtime, info.st_ctime) < time.time() - ABANDONED_S
    return is_old or has_ended(path.name)
