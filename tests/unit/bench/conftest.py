"""Fixtures for the tests of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builder.bench.machine import files
from tests.support.fake_nvml import FakeNvml

WriteFile = Callable[..., None]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    """The driver's library of a machine with one GPU."""
    return FakeNvml(monkeypatch, tmp_path)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WriteFile:
    """``root("/sys/x", "text")`` writes a file of the system that the benchmark reads."""

    def write(path: str, text: str = "") -> None:
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    monkeypatch.setattr(files, "ROOT", str(tmp_path))
    return write
