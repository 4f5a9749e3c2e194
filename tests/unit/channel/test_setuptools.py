"""Debian's wheel of setuptools."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from builder.channel.setuptools import _CHANGES, _row, restore_setuptools
from builder.errors import FetchError

RECORD = "setuptools-66.1.1.dist-info/RECORD"


def write(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "usr/share/python-wheels/setuptools-66.1.1-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    record = b"".join(_row(name, data) + b"\n" for name, data in files.items())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**files, RECORD: record}.items():
            archive.writestr(name, data)
    return path


def test_restored(tmp_path: Path) -> None:
    """Debian's lines are gone, and RECORD has the new hashes."""
    files = {name: ("a\n" + "\n".join(changes)).encode() for name, changes in _CHANGES.items()}
    path = write(tmp_path, {**files, "setuptools/other.py": b"other"})
    restore_setuptools(tmp_path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        content = {name: archive.read(name) for name in names}
    assert names == [*files, "setuptools/other.py", RECORD]
    assert b"install_layout" not in b"".join(content.values())
    rows = content.pop(RECORD).splitlines()
    assert rows == [_row(name, data) for name, data in content.items()]


def test_other_content(tmp_path: Path) -> None:
    write(tmp_path, {name: b"import sys\n" for name in _CHANGES})
    with pytest.raises(FetchError, match="setuptools-66.1.1-py3-none-any.whl has changed"):
        restore_setuptools(tmp_path)
