"""The results of several ranks as one."""

from __future__ import annotations

from typing import Any

import pytest

from builder.bench.ranks.merge import merged, uneven_ranks
from builder.bench.ranks.rank import Rank


def results(*items: dict[str, Any]) -> list[tuple[Rank, dict[str, Any]]]:
    out = []
    for number, item in enumerate(items):
        rank = Rank(number, 0.0)
        rank.host = f"n{number}"
        base = {"id": "x", "status": "pass", "seen": f"by {number}", "advice": ""}
        rank.when["x"] = float(number)
        out.append((rank, {**base, **item}))
    return out


@pytest.mark.parametrize(
    ("better", "values", "shown"),
    [("higher", (90.0, 70.0, 80.0), 70.0), ("lower", (2.0, 1.0, 3.0), 3.0)],
)
def test_slowest_device(better: str, values: tuple[float, ...], shown: float) -> None:
    """The figure of several devices that all pass is that of the slowest, whoever reports first."""
    items = [{"median_gb_per_s": value, "better": better} for value in values]
    (item,) = merged(results(*items), 3, figures=True)
    assert item["median_gb_per_s"] == shown and len(item["ranks"]) == 3


def test_failure_counts_more() -> None:
    """Of failures the earliest is shown, because it may have caused the others."""
    items = [{"median_s": 9.0}, {"status": "fail"}, {"status": "fail", "median_s": 1.0}]
    (item,) = merged(results(*items), 3, figures=True)
    assert item["status"] == "fail" and item["seen"] == "rank 1 (n1): by 1"


def test_probe_names_its_ranks() -> None:
    (item,) = merged(results({}, {"status": "warn"}, {"status": "warn"}), 3)
    assert item["ranks"] == [1, 2] and item["seen"] == "rank 1 (n1): by 1"


def test_probe_of_each_gpu() -> None:
    """Each rank looks at its own GPU: one text stands for all of them."""
    items = [{"id": "gpu.memory", "seen": f"GPU {number}: 126.0 GiB"} for number in range(8)]
    (item,) = merged(results(*items), 8)
    assert item["seen"] == "GPU 0: 126.0 GiB; 8 ranks passed"


@pytest.mark.parametrize(
    ("name", "better", "values", "status"),
    [
        ("matmul.bf16", "higher", (100.0, 100.0, 60.0), "warn"),
        ("transfer.h2d_pinned", "higher", (50.0, 51.0, 25.0), "warn"),
        # the core that copies decides, and which one that is
        ("transfer.h2d_pageable", "higher", (10.0, 9.0, 6.0), ""),
        # a rank that is faster than the others was named as slow; first calls differ anyway
        ("launch", "lower", (4.0, 5.0, 5.0), ""),
        ("conv.first_kernel", "lower", (0.3, 9.0, 9.5), ""),
    ],
)
def test_even(name: str, better: str, values: tuple[float, ...], status: str) -> None:
    """Only what the device itself needs is compared between ranks."""
    unit = "gb_per_s" if better == "higher" else "us"
    items = [{"id": name, f"median_{unit}": value, "better": better} for value in values]
    found = uneven_ranks(merged(results(*items), 3, figures=True))
    assert [item["status"] for item in found] == ([status] if status else [])


def test_size_of_each_rank() -> None:
    """Grading tells a slow GPU from one that had time for small products only."""
    items = [{"median_gflop_per_s": speed, "size": size} for speed, size in ((9.0, 8192), (5.0, 2048))]
    (item,) = merged(results(*items), 2, figures=True)
    assert [rank["size"] for rank in item["ranks"]] == [8192, 2048]


def test_state_of_each_gpu() -> None:
    """Each rank's figures have the state of its GPU, without the samples."""
    state = {"clock_mhz": 1400.0, "power_w": 400.0, "temperature_c": 60.0, "throttled": ["heat"]}
    figures = {"median_gb_per_s": 1.0, "sustained_gb_per_s": 1.0, "burst_gb_per_s": 1.1}
    item = {**figures, **state, "samples_gb_per_s": [1.0], "repeats": 1}
    (found,) = merged(results(item, item), 2, figures=True)
    assert found["ranks"][1] == {"rank": 1, "host": "n1", "device": "", "status": "pass", **figures, **state}
