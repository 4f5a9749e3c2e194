"""The roofline of the HTML page."""

from __future__ import annotations

import pytest

from builder.smoke.reference import references
from builder.smoke.reports import StoredReport
from builder.smoke.roofline import roofline
from tests.support.page import page
from tests.support.reports import a100, cpu


def test_roofline() -> None:
    """The points are inside the drawing and below the ceilings."""
    made = a100()
    for m in made["measurements"]:
        if m["id"].startswith("matmul"):
            m["size"] = 8192
    drawn = roofline(made, references())
    assert drawn is not None and drawn.note == "NVIDIA A100 SXM4 40 GB"
    assert {c.label.split()[0] for c in drawn.ceilings} >= {"memory.triad", "memory", "fp32"}
    assert any(c.label == "fp16, bf16 peak 312 TFLOP/s" and c.kind == "paper" for c in drawn.ceilings)
    top = min(c.y for c in drawn.ceilings)
    left, above, right, below = drawn.margins
    for p in drawn.points:
        assert left <= p.x <= drawn.width - right and top < p.y < drawn.height - below
    ceiling = roofline(cpu(), references())
    assert ceiling is not None and [c.label for c in ceiling.ceilings if c.label.startswith("cpu.peak")] == [
        "cpu.peak (fp32) 403 GFLOP/s"
    ]


def test_faster_units() -> None:
    """A matrix product in bf16 that is faster than the peak of fp32 has a roof of its own."""
    made = cpu()
    fp32 = next(m for m in made["measurements"] if m["id"] == "matmul.fp32")
    faster = {**fp32, "id": "matmul.bf16", "median_gflop_per_s": 1200.0}
    drawn = roofline({**made, "measurements": [*made["measurements"], faster]}, references())
    assert drawn is not None
    roofs = {c.label: c.y for c in drawn.ceilings if not c.label.startswith("memory")}
    best = "best matmul.bf16 (faster units than fp32) 1.20 TFLOP/s"
    assert list(roofs) == ["cpu.peak (fp32) 403 GFLOP/s", best]
    assert min(point.y for point in drawn.points) >= roofs[best] - 0.1


@pytest.mark.parametrize(
    "gone", [["memory.triad", "memory.copy"], ["matmul.fp32", "conv.training", "attention"]]
)
def test_no_roofline(gone: list[str]) -> None:
    """Without memory bandwidth or arithmetic speed there is no roofline."""
    made = cpu()
    made["measurements"] = [m for m in made["measurements"] if m["id"] not in gone]
    assert roofline(made, references()) is None
    page({"cpu": ([StoredReport(made, "x")], ())})
