"""Names of temporary files, from which a later build sees whether the process that wrote them still runs.

A name holds the host and the process::

    blob-login01-4711-9f86d081884c7d65
         host    pid  random

A file of this host whose process has ended was left by a killed build: :func:`remove_left_behind` removes it.
Files of other hosts (the cache may be on a shared file system) and files with other names stay.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
from pathlib import Path

_PREFIX = "blob-"


def temporary_name() -> str:
    """A new unique name for a file or folder that this process writes and removes."""
    return f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


def process_of(name: str) -> int | None:
    """The process ID in a name of :func:`temporary_name`; None for other names and for other hosts."""
    prefix = f"{_PREFIX}{socket.gethostname()}-"
    if not name.startswith(prefix):
        return None
    pid, separator, _ = name.removeprefix(prefix).partition("-")
    return int(pid) if separator and pid.isdigit() else None


def remove_left_behind(folder: Path) -> int:
    """Removes the temporary files and folders in ``folder`` whose process on this host has ended.

    Returns:
        The bytes freed (folders count only by their own size).
    """
    freed = 0
    for path in folder.glob(f"{_PREFIX}*"):
        pid = process_of(path.name)
        if pid is None or Path(f"/proc/{pid}").exists():
            continue
        with contextlib.suppress(FileNotFoundError):  # another build removes it at the same time
            freed += path.stat().st_size
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
    return freed
