"""xz files: several streams, positions, and bounds."""

from __future__ import annotations

import io
import lzma
import random
from pathlib import Path

from builder.trees.xz import XzFile

DATA = random.Random(1).randbytes(1_300_000) + bytes(3_000_000)


def reader(path: Path, data: bytes) -> io.BufferedReader:
    path.write_bytes(data)
    return io.BufferedReader(XzFile(path))


def test_streams(tmp_path: Path) -> None:
    """Several streams, with padding between and after them, are one file."""
    packed = lzma.compress(DATA) + bytes(8) + lzma.compress(b"end") + bytes(4)
    with reader(tmp_path / "a.xz", packed) as file:
        assert file.read() == DATA + b"end"


def test_positions(tmp_path: Path) -> None:
    """Members of an archive are read in any order."""
    with reader(tmp_path / "a.xz", lzma.compress(DATA)) as file:
        for at in (1_299_990, 5, 4_000_000, 1_000_000):
            file.seek(at)
            assert file.tell() == at and file.read(20) == DATA[at : at + 20]
        file.seek(100, 1)
        assert file.tell() == 1_000_120 and file.read(9) == DATA[1_000_120:1_000_129]
        file.seek(len(DATA) + 10)
        assert file.read(1) == b""
