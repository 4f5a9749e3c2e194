"""Workers of a DataLoader that hang."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from builder.bench.core import Item, Outcome
from builder.bench.measurements import dataloader
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


class Epochs:
    """Stands in for ``load_epochs``: hangs so many times, then works."""

    def __init__(self, hangs: int) -> None:
        self.hangs = hangs
        self.calls = 0

    def __call__(self, run: object, samples: object) -> Item:
        self.calls += 1
        if self.calls <= self.hangs:
            raise RuntimeError("DataLoader timed out after 20 seconds")
        return {"median_samples_per_s": 1.0}


@pytest.fixture(autouse=True)
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader, "Samples", lambda torch, count: object())


def test_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader, "load_epochs", Epochs(0))
    assert dataloader.measure_loader(make_run(fake_torch("CPU"))) == {"median_samples_per_s": 1.0}


@pytest.mark.parametrize(("hangs", "status"), [(1, "warn"), (2, "fail")])
def test_hangs(hangs: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked workers may hang by chance: once is a warning, twice is a failure."""
    epochs = Epochs(hangs)
    monkeypatch.setattr(dataloader, "load_epochs", epochs)
    with pytest.raises(Outcome) as found:
        dataloader.measure_loader(make_run(fake_torch("CPU")))
    assert found.value.status == status and "timed out" in found.value.seen
    assert ("spawn" in found.value.advice) == (hangs == 1)
    assert (found.value.fields == {"median_samples_per_s": 1.0}) == (hangs == 1)
    assert epochs.calls == 2


def test_path_too_long_for_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason for the hang is known, so that there is no second try."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    epochs = Epochs(9)
    monkeypatch.setattr(dataloader, "load_epochs", epochs)
    with pytest.raises(Outcome) as found:
        dataloader.measure_loader(make_run(fake_torch("CPU")))
    assert "too long a path for sockets" in found.value.seen and "TMPDIR" in found.value.advice
    assert found.value.status == "fail" and epochs.calls == 1
