"""The results of several ranks as one."""

from __future__ import annotations

from typing import Any

import pytest

from builder.bench.ranks.merge import merged
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
