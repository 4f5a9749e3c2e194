"""The measured values of a report, and how they are printed."""

from __future__ import annotations

from builder.bench.report import format_value
from builder.deliver.smoke.values import values_of
from tests.support.reports import ranked


def test_format_value() -> None:
    """Values have three digits and a readable unit."""
    assert [format_value(v, "gflop_per_s") for v in (0.0, 0.0412, 83.81, 999.4, 248_123.0)] == [
        "0 GFLOP/s",
        "0.0412 GFLOP/s",
        "83.8 GFLOP/s",
        "999 GFLOP/s",
        "248 TFLOP/s",
    ]
    assert (
        format_value(1383, "gb_per_s") == "1.38 TB/s"
        and format_value(12.34, "ms") == "12.3 ms"
        and format_value(12345, "samples_per_s") == "12345 samples/s"
    )


def test_values_of_ranks() -> None:
    """Each rank has a value."""
    values = values_of(ranked("matmul.bf16", (1.0, 2.0)))
    assert [(v.rank, v.median, v.where) for v in values] == [
        (0, 1.0, "rank 0 on n017 (cuda:0)"),
        (1, 2.0, "rank 1 on n017 (cuda:1)"),
    ]
    assert values_of({"id": "x"}) == []
