"""The space that a build needs, before it begins."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.engines.base import BuildRequest, Clock
from builder.engines.prepare import prepare_inputs
from builder.engines.space import PLENTY, needed_space, require_build_space
from builder.errors import SpaceError
from builder.model import LockedPackage
from tests.support.engines import package, request
from tests.support.image_kit import recipe

GB = 10**9
_Usage = namedtuple("_Usage", "total used free")
TORCH = replace(package("torch", "pip"), sha256="b" * 64)
PYTHON = package("python")


class Notes:
    """A reporter that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``disk(free, sizes)``; returns the packages whose servers were asked."""

    def disk(free: int, sizes: dict[str, int]) -> list[str]:
        asked: list[str] = []

        def head_sizes(packages: Sequence[LockedPackage], settings: Any, *_: Any, **__: Any) -> Any:
            if settings.offline:
                return {p.key: None for p in packages}
            asked.extend(p.name for p in packages)
            return {p.key: sizes.get(p.name) for p in packages}

        monkeypatch.setattr("builder.fetch.sizes.head_sizes", head_sizes)
        monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(free, 0, free))
        return asked

    return disk


def asked_for(tmp_path: Path, **more: Any) -> tuple[BuildRequest, Notes]:
    notes = Notes()
    made = request(tmp_path, [TORCH, PYTHON], **more)
    return replace(made, reporter=notes), notes  # type: ignore[arg-type]


def test_too_small(disk: Any, tmp_path: Path) -> None:
    """The build ends before the base is opened or anything is downloaded."""
    asked = disk(3 * GB, {"torch": 2 * GB})
    made, notes = asked_for(tmp_path)
    with pytest.raises(SpaceError, match=r"building t needs about 4\.6 GB in .*, 3\.0 GB are free"):
        prepare_inputs(made, Clock())
    assert asked == ["python", "torch"] and "t needs about 4.6 GB in" in notes.notes[0]
    assert not made.store.root.exists()


def test_large_enough(disk: Any, tmp_path: Path) -> None:
    """One line says what is needed. One folder for both needs the sum."""
    disk(9 * GB, {"torch": 2 * GB, "python": GB // 2})
    made, notes = asked_for(tmp_path)
    require_build_space(made, [TORCH, PYTHON])
    (line,) = notes.notes
    assert line == f"t needs about 7.8 GB in {made.settings.cache}, 9.0 GB are free"


def test_plenty(disk: Any, tmp_path: Path) -> None:
    """On a large disk no server is asked."""
    asked = disk(PLENTY, {"torch": 99 * PLENTY})
    made, notes = asked_for(tmp_path)
    require_build_space(made, [TORCH, PYTHON])
    assert asked == notes.notes == []


def test_unknown_and_offline(disk: Any, tmp_path: Path) -> None:
    """What is not known counts as nothing; the stages check what they write."""
    disk(1, {})
    made, notes = asked_for(tmp_path)
    require_build_space(made, [TORCH, PYTHON])
    asked = disk(1, {"torch": GB})
    require_build_space(replace(made, settings=replace(made.settings, offline=True)), [TORCH, PYTHON])
    assert asked == notes.notes == []


def test_estimates() -> None:
    """A SIF takes all archives once more; each thread unpacks a conda package."""
    sizes = {TORCH.key: 100, PYTHON.key: 10}
    assert needed_space(recipe(), [TORCH], sizes, 2) == (230, 0)
    assert needed_space(recipe(), [PYTHON], sizes, 2) == (23, 40)
    assert needed_space(recipe(format="sif"), [PYTHON], sizes, 2) == (166, 40)
    assert needed_space(recipe(format="sif"), [], sizes, 2) == (0, 0)
