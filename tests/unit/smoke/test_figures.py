"""The rows of GPU figures, and the state of a GPU."""

from __future__ import annotations

from builder.smoke.conditions import Conditions, conditions_of
from builder.smoke.figures import burst_text, figure_rows
from tests.support.reports import a100, cpu, measured, report, rich


def test_rows() -> None:
    """One row for each figure of GPUs, with the lowest fraction of each kind of reference."""
    made = rich()
    rows = figure_rows(made, made["grade"]["findings"])
    assert [row.id for row in rows] == ["matmul.bf16", "allreduce.node", "memory.copy"]
    bf16 = rows[0]
    assert (bf16.value, bf16.spread) == ("246 TFLOP/s", "slowest of 2, fastest 248 TFLOP/s")
    assert bf16.burst == "262 at first, 240 sustained" and bf16.how == "size 8,192, flash"
    assert bf16.published is not None and bf16.published.name == "of published" and bf16.site is None
    assert rows[1].how == "nvls" and figure_rows(cpu(), []) == []


def test_times() -> None:
    """Of times, the slowest GPU has the largest."""
    item = measured("kernel.launch", 4.0, "us", better="lower")
    item["ranks"] = [{"rank": n, "device": f"cuda:{n}", "median_us": 4.0 + n} for n in range(3)]
    (row,) = figure_rows(report([item]), [])
    assert (row.value, row.spread) == ("6.00 us", "slowest of 3, fastest 4.00 us")


def test_sizes() -> None:
    """Large sizes are bytes."""
    made = report(
        [measured("memory.copy", 2.0, size=4 << 30), measured("allreduce.node", 2.0, size=256 << 20)]
    )
    assert [row.how for row in figure_rows(made, [])] == ["4 GiB", "256 MiB"]


def test_burst() -> None:
    """Sustained and burst values are named if they differ, higher or lower."""
    item = {"sustained_ms": 2.0, "burst_ms": 1.9}
    assert burst_text(item, "ms") == "1.90 at first, 2.00 sustained"
    assert burst_text({**item, "burst_ms": 1.99}, "ms") == "" == burst_text({}, "ms")


def test_conditions() -> None:
    """Ranges over ranks; reasons each once; nothing for old reports."""
    item = {
        "clock_mhz": 1400,
        "throttled": [],
        "ranks": [{"clock_mhz": 1380, "power_w": 400.2, "throttled": ["heat", "power cap"]}, "junk"],
    }
    found = conditions_of(item)
    assert str(found) == "1,380 to 1,400 MHz, 400 W, heat, power cap"
    assert conditions_of({"throttled": []}) == Conditions(throttled=())
    assert conditions_of(a100()["measurements"][0]) == conditions_of({"clock_mhz": "fast"}) == Conditions()
