"""Zip archives of others: their directory is bounded before it is read."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

import builder
from builder.core.errors import LayerError
from builder.formats.layers import bounds
from builder.formats.layers.zips import open_zip
from builder.lock.sourcesolve import wheel_requirements
from tests.support.wheels import fetched, make_wheel

FOLDER = Path(builder.__file__).parent


def test_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zipfile makes objects of half a kB for entries of 46 bytes, so a large directory is not read."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as made:
        for number in range(100):
            made.writestr(str(number), b"x")
    with open_zip(path) as archive:
        assert archive.read("99") == b"x"
    monkeypatch.setattr(bounds, "MAX_DIRECTORY", 4000)
    with pytest.raises(zipfile.BadZipFile, match="its central directory has .* at most 4000"), open_zip(path):
        pass


def test_one_reader() -> None:
    """No other module opens a zip to read it."""
    opened = {
        str(path.relative_to(FOLDER)): line
        for path in FOLDER.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\bZipFile\((?!.*\"w\")|zipfile\.Path\(|unpack_archive\(path, [^f]|zipimport", line)
    }
    assert list(opened) == ["formats/layers/zips.py"], opened


def test_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of a wheel that a backend of others built is read up to the bound of all wheels."""
    path = make_wheel(tmp_path, metadata="Requires-Dist: numpy >=1\nRequires-Dist: a; extra == 'b'\n")
    assert wheel_requirements(fetched(path)) == ["numpy >=1", "a; extra == 'b'"]
    monkeypatch.setattr(bounds, "MAX_LISTING", 20)
    with pytest.raises(LayerError, match="at most 20 are allowed"):
        wheel_requirements(fetched(path))
