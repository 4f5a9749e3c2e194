"""Small SIFs that siftool and mksquashfs make."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from builder.core.model import SifImage
from builder.core.store.files import sha256_file
from tests.support.parts import need


def make_sif(path: Path, size: int = 1 << 16, seed: str = "") -> SifImage:
    """A SIF with one squashfs partition that holds ``size`` incompressible bytes."""
    siftool, mksquashfs = need("siftool", "mksquashfs")
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = path.with_suffix(".tree")
    tree.mkdir()
    (tree / "data").write_bytes(random.Random(seed or path.name).randbytes(size))
    squashfs = path.with_suffix(".squashfs")
    quiet = ["-quiet", "-no-progress", "-all-root", "-noD", "-noF"]
    subprocess.run([mksquashfs, str(tree), str(squashfs), *quiet], check=True, capture_output=True)
    subprocess.run([siftool, "new", str(path)], check=True, capture_output=True)
    what = ["--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch", "2", "--groupid", "1"]
    subprocess.run([siftool, "add", *what, str(path), str(squashfs)], check=True, capture_output=True)
    return SifImage(path, sha256_file(path), path.stat().st_size)
