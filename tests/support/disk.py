"""Small file systems, to fill them."""

from __future__ import annotations

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
