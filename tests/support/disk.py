"""Disks that are soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.parts import part_missing


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """``folder`` as a file system of its own of ``size`` (``1m``), for root; gone with all that is in it afterwards."""
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True
    ).returncode:
        part_missing("a tmpfs cannot be mounted: not root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
