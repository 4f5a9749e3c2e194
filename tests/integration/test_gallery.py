"""The projects of ``examples/`` that are to be copied: built and run as docs/examples.md says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.ownprojects import User
from tests.support.parts import CLONE

pytestmark = [pytest.mark.network, pytest.mark.heavy]
WALKS = CLONE / "tests/walks/gallery"


@pytest.mark.parametrize("name", sorted(path.stem for path in WALKS.glob("*.sh")))
def test_example(name: str, tmp_path: Path, cache: Path) -> None:
    os.symlink(CLONE, tmp_path / "builder-clone")
    User(tmp_path, cache).type(f"sh {WALKS / name}.sh")
