"""The simulation of A/B runs: few false alarms on machines that change between runs, and detection."""

from __future__ import annotations

import pytest

from benchmarks.bench_verdict import MODELS, Model, render, simulate

BY_NAME = {model.name: model for model in MODELS}


@pytest.mark.parametrize(
    "model", [BY_NAME["published noise"], BY_NAME["all of it"], BY_NAME["CPU, 50 % of the time half as fast"]]
)
def test_false_alarms(model: Model) -> None:
    """One image against itself: at most 1 % end as slower, so 4 of 60 are far too many."""
    row = simulate(model, 60)
    assert row.slower[0] < 4 / 60
    assert model.name in render([row], 60)


def test_detection() -> None:
    """With normal noise, 5 % slower in one product is found."""
    row = simulate(BY_NAME["published noise"], 30)
    assert row.slower[2] > 0.95 and row.unsteady == (0, 0, 0)
