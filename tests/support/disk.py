"""Small file systems, to fill them, and disks that flip bits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.parts import part_missing


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size (``1m``) in ``folder``, which must not exist. Needs root."""
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True
    ).returncode:
        part_missing("only root can mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def flip(path: Path) -> None:
    """Flips a bit in the middle of a file, as a disk or a bad memory does: the file looks unchanged."""
    before = path.stat()
    with path.open("r+b") as f:
        f.seek(before.st_size // 2)
        (byte,) = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
