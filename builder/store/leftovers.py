"""Removes the temporary files that killed builds left behind."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from builder.store.temporary import writer_of
from builder.store.walk import remove_tree

#: After this time any temporary file is taken for left behind, in seconds: no build takes so long.
ABANDONED_S = 7 * 86400


def remove_left_behind(folder: Path) -> int:
    """Removes the temporary files and folders in ``folder`` whose process was killed.

    Whether a process of another host or container runs cannot be known, and a process ID is used again. So
    files that were not changed for a week are removed, too.

    Returns:
        The bytes freed (folders count only by their own size).
    """
    freed = 0
    try:
        paths = list(folder.iterdir())
    except OSError:
        return 0
    for path in paths:
        with contextlib.suppress(OSError):  # removed meanwhile, or of another user
            if _is_left_behind(path):
                size = path.lstat().st_size
                remove_tree(path)
                freed += size
    return freed


def _is_left_behind(path: Path) -> bool:
    writer = writer_of(path.name)
    if writer is None:
        return False
    if writer.has_ended():
        return True
    info = path.lstat()  # unpacking sets the time of a folder to the one in an archive, but not st_ctime
    return max(info.st_mtime, info.st_ctime) < time.time() - ABANDONED_S
