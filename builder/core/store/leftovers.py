"""Removes the temporary files that killed builds left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .temporary import temporary_name, writer_of
from .walk import Stuck, try_to_remove

#: After this time any temporary file is taken for left behind, in seconds: no build takes so long.
ABANDONED_S = 7 * 86400
#: The system's folders for temporary files. A user's subordinate ids may have no way into builder's own.
SHARED_FOLDERS = (Path(os.environ.get("TMPDIR") or "/tmp"), Path("/var/tmp"), Path("/tmp"))  # noqa: S108


@contextlib.contextmanager
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
    writer = writer_of(path.name)
    if writer is None or os.geteuid() not in (0, path.lstat().st_uid):
        return False
    if writer.has_ended():
        return True
    # unpacking sets the time of a folder to the one in an archive, but not st_ctime
    info = path.lstat()
    return max(info.st_mtime, info.st_ctime) < time.time() - ABANDONED_S
