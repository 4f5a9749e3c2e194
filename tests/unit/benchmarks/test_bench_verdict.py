"""The table of false alarms in docs/grading.md is that of the present rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import bench_verdict
from benchmarks.bench_verdict import CHECKED, Case, render, render_kinds, rule, simulate
from benchmarks.fleet import noise_of

AGAIN = "run python -m benchmarks.bench_verdict --write"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(bench_verdict.RESULTS.read_text())
    return stored


def test_page(results: dict[str, Any]) -> None:
    """The page shows the stored results, of the present rule."""
    page = bench_verdict.PAGE.read_text()
    assert results["rule"] == json.loads(json.dumps(rule())), AGAIN
    assert render(results) in page and render_kinds() in page, AGAIN


@pytest.mark.parametrize("position", [0, 20, 25, 26, 95])
def test_stored_results(results: dict[str, Any], position: int) -> None:
    """The first comparisons of some cells end as they did when the results were stored."""
    cell = results["cells"][position]
    case = Case(**{**cell["case"], "without": tuple(cell["case"]["without"])})
    again = simulate(case, cell["change"], noise_of(results["noise"]), CHECKED)
    assert again.beginning == cell["beginning"], AGAIN


def test_goals(results: dict[str, Any]) -> None:
    """The goals of docs/grading.md are met by the stored results, at every assumed spread of the fleet."""
    share = {
        (json.dumps(cell["case"], sort_keys=True), cell["change"]): cell["slower"] / cell["comparisons"]
        for cell in results["cells"]
    }
    for case in bench_verdict.cases_of(noise_of(results["noise"])):
        key = json.dumps({**bench_verdict.asdict(case), "without": []}, sort_keys=True)
        assert share[key, "none"] < (0.05 if case.old_gpus else 0.02)
        if case.old_gpus == 0:
            assert share[key, "all"] == 1
        elif case.old_runs == 3:
            assert share[key, "bf16"] >= 0.80
