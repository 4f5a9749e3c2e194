"""Grading all-reduce: by size, algorithm and number of GPUs, for each node."""

from __future__ import annotations

from typing import Any

import pytest

from builder.smoke.grade import Expected, grade
from builder.smoke.reference import references
from tests.support.reports import A100_40, H200, MI300X, STRANGE, measured, ranked, report

MIB, GIB = 1 << 20, 1 << 30


def graded(
    speed: float,
    device: dict[str, Any],
    *,
    gpus: int = 8,
    nodes: int = 1,
    variables: dict[str, str] | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """The findings about an all-reduce over the GPUs of each of some nodes."""
    speeds = [speed * (1 + 0.001 * i) for i in range(gpus * nodes)]
    item = ranked("allreduce.node", speeds, unit="gb_per_s", **{"members": gpus, **more})
    devices = []
    for i, rank in enumerate(item["ranks"]):
        rank["host"] = f"n{i // gpus}"
        devices.append({**device, "rank": i, "host": rank["host"]})
    given = report([item], devices=devices, ranks=gpus * nodes)
    given["launch"]["nodes"] = nodes
    given["facts"]["variables"] = variables or {}
    out = grade(given, references(), Expected())
    return [f for f in out["grade"]["findings"] if f["id"] == "allreduce.node"]


def test_several_nodes() -> None:
    """A run on two nodes is graded on each of them, by its slowest rank."""
    found = graded(233.0, A100_40, nodes=2, size=4 * GIB)
    assert [(f["status"], f["device"]) for f in found] == [
        ("pass", "rank 0 on n0 (cuda:0)"),
        ("pass", "rank 8 on n1 (cuda:8)"),
    ]
    assert {f["status"] for f in graded(40.0, A100_40, nodes=2, size=4 * GIB)} == {"fail"}


@pytest.mark.parametrize(
    ("size", "speed", "reference"),
    [(256 * MIB, 192.0, 194.07), (GIB, 228.0, 229.04), (2 * GIB, 231.0, 229.04), (32 * GIB, 235.0, 234.89)],
)
def test_size(size: int, speed: float, reference: float) -> None:
    """A figure of the same size or the next smaller one counts: 256 MiB are not compared with 16 GiB."""
    (found,) = graded(speed, A100_40, size=size)
    assert found["status"] == "pass" and found["reference"] == reference
    assert found["fraction"] == pytest.approx(1, abs=0.02)


def test_too_small() -> None:
    """Below 1 GiB nothing is compared with figures of larger arrays, but it may pass."""
    (found,) = graded(180.0, MI300X, size=256 * MIB)
    assert found["status"] == "skip" and "not evaluated: only 256 MiB fitted the time" in found["seen"]
    assert graded(290.0, MI300X, size=256 * MIB)[0]["status"] == "pass"
    assert graded(180.0, MI300X, size=GIB)[0]["status"] == "warn"
    assert graded(20.0, MI300X, size=256 * MIB)[0]["status"] == "fail"  # size does not explain this
    assert graded(20.0, MI300X, size=16 * MIB)[0]["status"] == "skip"


def test_nvls() -> None:
    """Rings are compared with rings: nccl.transport warns of them where NVLS is usual, and once is enough."""
    (found,) = graded(366.0, H200, size=16 * GIB, algorithm="ring")
    assert found["status"] == "pass" and found["fraction"] == pytest.approx(1, abs=0.01)
    assert graded(220.0, H200, size=16 * MIB, algorithm="ring")[0]["status"] == "skip"
    assert graded(478.0, H200, size=16 * GIB, algorithm="nvls")[0]["status"] == "pass"
    assert graded(366.0, H200, size=16 * GIB)[0]["status"] == "warn"  # unknown: NCCL would choose NVLS
    assert graded(360.0, H200, size=8 * GIB, gpus=4, algorithm="ring")[0]["status"] == "pass"
    assert graded(234.0, A100_40, size=16 * GIB, algorithm="tree")[0]["status"] == "pass"


def test_other_findings() -> None:
    """An unsteady figure warns; one far above the published figure of its size is noted."""
    (found,) = graded(233.0, A100_40, size=4 * GIB, noise=0.3)
    assert found["status"] == "warn" and "varies by 30%" in found["seen"]
    (found,) = graded(290.0, A100_40, size=4 * GIB)
    assert found["status"] == "pass" and "the reference is too low" in found["seen"]
    assert "too low" not in graded(170.0, A100_40, size=64 * MIB)[0]["seen"]  # of 16 MiB


def test_variables() -> None:
    """A variable that switches the links off is named, and does not fail."""
    (found,) = graded(20.0, A100_40, size=GIB, variables={"NCCL_P2P_DISABLE": "1"})
    assert found["status"] == "warn" and "unset NCCL_P2P_DISABLE=1" in found["advice"]


def test_without_figures() -> None:
    """Other numbers of GPUs and unknown GPUs are not compared."""
    assert graded(80.0, A100_40, gpus=4, size=GIB) == []
    assert graded(80.0, STRANGE, size=GIB) == []


def test_old_report() -> None:
    """Without the number of members, that of the launch counts, on one node only."""
    item = measured("allreduce.node", 190.0, size=256 * MIB)
    for nodes, found in ((1, 1), (2, 0)):
        given = report([item], devices=[A100_40], ranks=8)
        given["launch"]["nodes"] = nodes
        findings = grade(given, references(), Expected())["grade"]["findings"]
        assert len([f for f in findings if f["id"] == "allreduce.node"]) == found
