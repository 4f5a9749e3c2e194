"""Wheels that are made when the benchmark runs."""

from __future__ import annotations

import csv
import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks.synthetic import Package, packages, write_wheels

SMALL = Package("made-x", modules=4, data=3, large=5 << 20)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    write_wheels(folder, [SMALL])
    return folder / "made_x-1.0-py3-none-any.whl"


def test_archive(wheel: Path) -> None:
    """It is a sound archive, and RECORD has the hash of each file."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        record = archive.read("made_x-1.0.dist-info/RECORD").decode().splitlines()
        rows = {path: hashed for path, hashed, _ in csv.reader(record)}
        assert set(rows) == set(archive.namelist())
        for path in archive.namelist():
            assert path.endswith("RECORD") or rows[path].startswith("sha256=")
        names = archive.namelist()
    assert sum(name.endswith(".py") for name in names) == 4
    assert sum(name.endswith(".so") for name in names) == 2


def test_same_bytes(wheel: Path, tmp_path: Path) -> None:
    write_wheels(tmp_path, [SMALL])
    (other,) = tmp_path.iterdir()
    assert hashlib.sha256(other.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()


def test_packages() -> None:
    """The files and bytes are those that are asked for, and few packages have most of the bytes."""
    made = packages(300, 60_000, 10**9)
    assert len(made) == 300
    assert sum(p.modules + p.data for p in made) == 60_000
    assert sum(p.modules for p in made) == 24_000
    assert sum(1 for p in made if p.large) == 30
    assert sum(p.large for p in made) == pytest.approx(10**9 - 60_000 * 7_000, rel=0.01)
