"""Which format a file has, and the Python that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import LockError
from builder.lock.formats import foreign_python
from builder.lock.othertools import lock_format
from tests.unit.lock.formats import test_explicit, test_pixi, test_pylock, test_requirements, test_uvlock
from tests.unit.lock.formats.support import read, written

CONDA_LOCK = "version: 1\nmetadata:\n  platforms: []\npackage: []\n"


@pytest.mark.parametrize(
    ("name", "text", "found", "python"),
    [
        ("uv.lock", test_uvlock.LOCK, "uvlock", ">=3.10"),
        ("pixi.lock", test_pixi.FILES_BY_VERSION[6], "pixi", None),
        ("pylock.toml", test_pylock.LOCK, "pylock", ">=3.10"),
        ("lock.toml", test_pylock.LOCK, "pylock", ">=3.10"),
        ("requirements.txt", test_requirements.COMPILED, "requirements", ""),
        ("conda-linux-64.lock", test_explicit.LIST, "explicit", None),
        ("lock.yml", CONDA_LOCK, "conda-lock", None),
        ("requirements.txt", "rich\n", None, None),
    ],
)
def test_formats(tmp_path: Path, name: str, text: str, found: str | None, python: str | None) -> None:
    path = written(tmp_path, name, text)
    row = lock_format(path, text)
    assert (row and row.name) == found
    assert foreign_python(path) == python


@pytest.mark.parametrize(
    ("name", "command"),
    [("poetry.lock", "poetry export"), ("pdm.lock", "pdm export"), ("Pipfile.lock", "pipenv requirements")],
)
def test_other_tools(tmp_path: Path, name: str, command: str) -> None:
    path = written(tmp_path, name, "x = 1\n")
    with pytest.raises(LockError, match="not a lock file that builder reads") as caught:
        read(path)
    assert command in caught.value.hint
