"""What every engine does first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.engines.prepare import open_locked_base
from builder.errors import LockError
from builder.model import LockedBase
from tests.support.engines import HASH, request


def test_base_of_a_foreign_lock(tmp_path: Path) -> None:
    """A lock that was named on the command line does not replace the recipe's base."""
    made = request(tmp_path)
    evil = replace(made.lock, base=LockedBase("docker://host.example/evil:1", f"sha256:{HASH}"))
    with pytest.raises(LockError, match=r"pins the base docker://host\.example/evil:1, and .*t\.yaml names"):
        open_locked_base(replace(made, lock=evil))
