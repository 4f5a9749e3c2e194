"""What a rank does: the order of its events, and findings whatever happens in a probe or measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.bench import examine as module
from builder.bench.core import Measurement, Probe, skip, warn
from builder.bench.examine import examine, perform
from builder.bench.measurements import MEASUREMENTS
from builder.bench.measurements.accuracy import checked
from builder.bench.probes import PROBES
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, make_run

DOCS = Path(__file__).parents[3] / "docs" / "smoke.md"


def test_documented() -> None:
    """docs/smoke.md explains every probe and measurement, and no id appears twice."""
    text = DOCS.read_text()
    ids = [item.id for item in (*PROBES, *MEASUREMENTS)]
    assert len(set(ids)) == len(ids)
    assert [name for name in ids if f"`{name}`" not in text] == []


def test_wrong_result_fails() -> None:
    item = perform("x", lambda: {"median_s": 1.0, **checked("version", "2", "1", False)})
    assert item["status"] == "fail" and "version" in item["seen"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_figure_that_is_no_number(value: Any) -> None:
    item = perform("x", lambda: {"median_s": value})
    assert item["status"] == "fail" and "median_s" in item["seen"]


def test_probe_that_raises() -> None:
    """A probe that cannot be carried out is a finding: minor ones warn, others fail."""

    def broken() -> Any:
        raise ValueError("odd\nmore")

    assert perform("python.path", broken)["status"] == "warn"
    assert perform("gpu.architecture", broken)["status"] == "fail"
    assert perform("gpu.architecture", broken)["seen"] == "ValueError: odd"
    torch = fake_torch("CUDA")
    torch.cuda.get_device_properties = lambda i: 1 / 0
    assert ask("gpu.architecture", torch).status == "fail"


def test_shared_gpu() -> None:
    """NCCL's error is not the network's when two ranks use one GPU."""

    def shared() -> Any:
        last = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60"
        raise RuntimeError(f"NCCL error in: NCCLUtils.cpp:93, invalid usage\nLast error:\n{last}")

    found = perform("allreduce.node", shared)
    assert found["status"] == "fail" and found["advice"].startswith("several ranks use one GPU")


def look(status: str) -> Any:
    def result(run: Any) -> Any:
        if status == "skip":
            raise skip("not here")
        if status == "warn":
            raise warn("seen", "advice", figure=2)
        return {"figure": 1} if status == "figure" else "fine"

    return result


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few probes and measurements instead of all."""
    monkeypatch.setattr(
        module, "PROBES", [Probe("late", look("skip"), late=True), Probe("early", look("pass"))]
    )
    measurements = [
        Measurement("own", look("figure")),
        Measurement("once", look("warn"), "once"),
        Measurement("gpu", look("figure"), only="gpu"),
        Measurement("all", look("figure"), "all"),
    ]
    monkeypatch.setattr(module, "MEASUREMENTS", measurements)


def test_order_of_events(few: None) -> None:
    """Each step is announced, then its result follows."""
    run = make_run(fake_torch("CPU"))
    events = list(examine(run, lambda: {}))
    begun = [event["begin"] for event in events if "begin" in event]
    assert begun == ["early", "facts", "own", "once", "gpu", "all", "late"]
    results = {
        item["id"]: item
        for event in events
        for item in event.values()
        if isinstance(item, dict) and "id" in item
    }
    assert {name: item["status"] for name, item in results.items()} == {
        "early": "pass", "own": "pass", "once": "warn", "gpu": "skip", "all": "pass", "late": "skip",
    }  # fmt: skip
    assert results["once"]["figure"] == 2 and results["gpu"]["seen"] == "on GPUs only"
    assert events[-1] == {"end": True, "after": {}}


def test_budget_spent(few: None) -> None:
    run = make_run(fake_torch("CPU"), budget=0)
    events = list(examine(run, lambda: {}))
    results = {event["measurement"]["id"]: event["measurement"] for event in events if "measurement" in event}
    assert results["own"]["seen"] == "the time budget of 0 s is spent" and run.missed == ["own", "once"]
    assert results["all"]["status"] == "pass"  # all ranks must decide alike


def test_budget_begins_after_the_facts(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow import leaves the measurements their whole budget."""
    run = make_run(fake_torch("CPU"))
    monkeypatch.setattr(module, "facts", lambda run: setattr(run, "started", run.started - 1000) or {})
    results = [event["measurement"] for event in examine(run, lambda: {}) if "measurement" in event]
    assert results[0]["status"] == "pass" and run.missed == []


def test_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured once for the host is left out, and probes that take seconds."""
    look = lambda run: {"median_s": 1.0}  # noqa: E731
    late = [Probe(name, lambda run: "seen", late=True) for name in ("gpu.clocks", "gpu.memory")]
    monkeypatch.setattr(module, "PROBES", late)
    both = [Measurement("own", look), Measurement("once", look, "once", always=True)]
    monkeypatch.setattr(module, "MEASUREMENTS", both)
    everything = ["own", "once", "gpu.clocks", "gpu.memory"]
    for device_only, expected in ((False, everything), (True, ["own", "gpu.clocks"])):
        run = make_run(fake_torch("CPU"), expect="none", device_only=device_only)
        events = list(examine(run, lambda: {"go": True}))
        found = [event[kind]["id"] for event in events for kind in ("probe", "measurement") if kind in event]
        assert found == expected
