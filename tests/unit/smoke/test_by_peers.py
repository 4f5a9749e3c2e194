"""Grading by peers: what may fail, and what may be the host's. More is in test_grade.py."""

from __future__ import annotations

from typing import Any

import pytest

from builder.smoke.grade import Expected, grade
from builder.smoke.reference import references
from tests.support.reports import STRANGE, ranked, report


def slow_one(item: dict[str, Any]) -> dict[str, Any]:
    """The finding about the only slow device."""
    (found,) = slow(item)
    return found


def slow(item: dict[str, Any]) -> list[dict[str, Any]]:
    devices = [{**STRANGE, "rank": i, "host": "n017"} for i in range(len(item["ranks"]))]
    out = grade(report([item], devices=devices, ranks=len(devices)), references(), Expected())
    return [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]


@pytest.mark.parametrize(("flop", "status"), [(2e11, "warn"), (3.8e12, "fail")])
def test_host_bound(flop: float, status: str) -> None:
    """Attention of 0.4 ms may wait for the host's Python; of 8 ms it is the GPU."""
    assert slow_one(ranked("attention", (500e3, 490e3, 300e3, 505e3), flop=flop))["status"] == status


def test_smaller_product() -> None:
    """A GPU that had time for a small product only is not broken because of that."""
    item = ranked("matmul.bf16", (780e3, 775e3, 430e3, 782e3), flop=1e12)
    for rank, size in zip(item["ranks"], (8192, 16384, 2048, 8192), strict=True):
        rank["size"] = size
    assert not slow(item)
    item["ranks"][2]["size"] = 8192  # and larger ones were slower
    assert slow_one(item)["status"] == "fail"
