"""Grading by peers: what may fail, and what may be the host's. More is in test_grade.py."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks import fleet
from builder.smoke.by_peers import grade_by_peers
from builder.smoke.grade import Expected, grade
from builder.smoke.reference import references
from builder.smoke.values import devices_of
from tests.support.reports import STRANGE, ranked, report


def slow_one(item: dict[str, Any]) -> dict[str, Any]:
    """The finding about the only slow device."""
    devices = [{**STRANGE, "rank": i, "host": "n017"} for i in range(len(item["ranks"]))]
    out = grade(report([item], devices=devices, ranks=len(devices)), references(), Expected())
    (found,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    return dict(found)


@pytest.mark.parametrize(("flop", "status"), [(2e11, "warn"), (3.8e12, "fail")])
def test_host_bound(flop: float, status: str) -> None:
    """Attention of 0.4 ms may wait for the host's Python; of 8 ms it is the GPU."""
    assert slow_one(ranked("attention", (500e3, 490e3, 300e3, 505e3), flop=flop))["status"] == status


def test_smaller_product() -> None:
    """A GPU that had time for a small product only is not broken because of that."""
    item = ranked("matmul.bf16", (780e3, 775e3, 430e3, 782e3), flop=1e12)
    for rank, size in zip(item["ranks"], (8192, 16384, 2048, 8192), strict=True):
        rank["size"] = size
    found = slow_one(item)
    assert found["status"] == "warn" and "it had time for size 2048" in found["seen"]
    item["ranks"][2]["size"] = 8192  # and larger ones were slower
    assert slow_one(item)["status"] == "fail"


def test_false_alarms() -> None:
    """With the noise that docs/grading.md assumes, 100 healthy nodes of 8 GPUs warn 5 times at most (0.5 are
    expected); before pageable copies and training steps had limits of their own, 99 of them warned."""
    rng = random.Random(5)
    warned = 0
    for _ in range(100):
        node = [fleet.Device(rng, fleet.ASSUMED) for _ in range(8)]
        healthy = fleet.report(node, rng, fleet.ASSUMED, {}).report
        warned += bool(list(grade_by_peers(healthy, devices_of(healthy))))
    assert warned <= 5


def test_first_convolution() -> None:
    """The seconds of the first convolution are not compared: caches decide."""
    item = ranked("conv.first_kernel", (2.0, 2.0, 30.0, 2.1), unit="s")
    devices = [{**STRANGE, "rank": i, "host": "n017"} for i in range(4)]
    out = grade(report([item], devices=devices, ranks=4), references(), Expected())
    assert not [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
