"""The table of changes between stored runs."""

from __future__ import annotations

from typing import Any

import pytest

from builder.deliver.smoke.changes import compare
from builder.deliver.smoke.reports import StoredReport
from builder.deliver.smoke.table import render_changes
from tests.support.reports import A100_40, H200, a100, cpu, measured, months, ranked, report


def runs(*scales: float, **more: Any) -> list[StoredReport]:
    return [
        StoredReport(a100({"matmul.bf16": scale}, noise=0.0, **more), str(n))
        for n, scale in enumerate(scales)
    ]


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ((1.0,), 0.99, "same"),
        ((1.0,), 0.97, "slower"),
        ((1.0,), 1.03, "faster"),
        ((1.0, 0.96, 1.02), 0.95, "same"),  # earlier runs differed as much
        ((1.0, 0.96, 1.02), 0.93, "slower"),
    ],
)
def test_outcome(old: tuple[float, ...], new: float, outcome: str) -> None:
    """A change counts beyond the earlier runs and the floor of 2 %."""
    found = compare(runs(new), runs(*old))
    change = next(change for change in found.changes if change.id == "matmul.bf16")
    assert change.outcome == outcome and change.runs == len(old)
    assert [c.id for c in found.changed] == ([] if outcome == "same" else ["matmul.bf16"])


def test_text() -> None:
    """The text has both values, the change, and what is usual."""
    (change,) = compare(runs(0.9), runs(1.0, 0.98)).changed
    assert change.text == "246 TFLOP/s -> 223 TFLOP/s, -9.1 % (usual: 243 TFLOP/s to 248 TFLOP/s, 2 runs)"
    (change,) = compare(runs(0.9), runs(1.0)).changed
    assert change.text.endswith("(1 run, no usual spread)")


@pytest.mark.parametrize("name", ["memory.triad", "start"])
def test_unjudged(name: str) -> None:
    """A figure whose spread nobody published is judged from five earlier runs on: a CPU's, a time."""
    old, new = (StoredReport(report([measured(name, value, device="cpu")]), "x") for value in (60.0, 20.0))
    found = compare([new] * 2, [old] * 4)
    (change,) = found.changes
    assert not found.changed and (change.outcome, change.runs, change.new_runs) == ("unjudged", 4, 2)
    assert change.text.endswith("(4 of 5 runs: no judgement yet)")
    rows = render_changes(found, "26.10").rows
    assert [row[:2] for row in rows] == [("unjudged", name)] and "no judgement yet" in rows[0][2]
    (change,) = compare([new], [old] * 5).changed
    assert change.outcome == "slower" and "usual" in change.text


def test_times() -> None:
    """For times lower is better."""
    old, new = (StoredReport(report([measured("start", value, "s")]), "x") for value in (10.0, 15.0))
    (change,) = compare([new], [old] * 5).changed
    assert change.outcome == "slower" and change.ratio == pytest.approx(10 / 15, rel=0.02)


def test_ranks() -> None:
    """The median over the GPUs of a run counts, so other numbers of GPUs are compared."""
    devices = [{**A100_40, "rank": n} for n in range(4)]
    new = report([ranked("matmul.bf16", (248e3, 247e3, 150e3, 249e3))], devices=devices, ranks=4)
    found = compare([StoredReport(new, "x")], runs(1.0))
    assert [change.id for change in found.changes] == ["matmul.bf16"] and not found.changed


@pytest.mark.parametrize("other", [{"size": 2048}, {}])
def test_not_comparable(other: dict[str, int]) -> None:
    """Figures of another size, and those of another model of GPU, are not compared."""
    new = report([measured("matmul.bf16", 100e3, **other)], devices=[A100_40 if other else H200])
    old = report([measured("matmul.bf16", 248e3, size=8192)], devices=[A100_40])
    assert not compare([StoredReport(new, "x")], [StoredReport(old, "y")]).changes


def test_disturbed_runs() -> None:
    """Runs beside other programs on the GPU are left out if there are others."""
    busy = runs(0.5, probes=(("gpu.idle", "warn"),))
    assert compare(runs(1.0), [*runs(1.0), *busy]).changes[0].runs == 1
    assert compare(runs(1.0), busy).changes[0].runs == 1


def test_differences() -> None:
    """The GPU, its driver and the packages are named where they differ."""
    old, new = months({}, {})
    found = compare([new], [old])
    assert found.differences == ("another image",)
    assert [p.text for p in found.packages or ()] == ["nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2"]
    assert compare([old], [old]).differences == ("the image is the same: what differs is the machine",)
    old.report["facts"]["devices"][0] |= {"uuid": "GPU-1", "driver": "570.86"}
    new.report["facts"]["devices"][0] |= {"uuid": "GPU-2", "driver": "580.82"}
    assert compare([new], [old]).differences[1:] == ("driver 570.86 -> 580.82", "another GPU")
    assert compare([StoredReport(cpu(), "x")], [new]).packages is None
