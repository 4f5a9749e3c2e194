"""Grading CPUs by the roofline of the same run, where other programs use the machine, too."""

from __future__ import annotations

from typing import Any

import pytest

from builder.smoke.grade import Expected, grade
from builder.smoke.reference import references
from tests.support.reports import cpu, measured
from tests.support.schema import check_report


def slow(*more: dict[str, Any], probes: Any = (("torch.import", "pass"),), **facts: Any) -> dict[str, Any]:
    """The report of a CPU whose products reach 18 % of the peak, with more measurements and facts."""
    made = cpu({"matmul.fp32": 0.2}, probes=probes)
    made["measurements"].extend(more)
    made["facts"].update(facts)
    return made


def again(fraction: float, name: str = "again.matmul") -> dict[str, Any]:
    return measured(name, fraction, "fraction", device="cpu", noise=0.02)


def finding(made: dict[str, Any], name: str = "matmul.fp32") -> dict[str, Any]:
    out = grade(made, references(), Expected())
    check_report(out)
    (found,) = [f for f in out["grade"]["findings"] if f["id"] == name]
    return dict(found)


@pytest.mark.parametrize(("fraction", "status"), [(0.9, "pass"), (0.4, "warn"), (0.2, "fail"), (0.1, "fail")])
def test_measured_again(fraction: float, status: str) -> None:
    """The better of both comparisons counts."""
    assert finding(slow())["status"] == "fail"
    found = finding(slow(again(fraction)))
    assert found["status"] == status
    assert f"; {fraction:.0%} when both were measured again in turns" in found["seen"]


def test_copy_measured_again() -> None:
    made = cpu({"memory.copy": 0.2})
    assert finding(made, "memory.copy")["status"] == "fail"
    made["measurements"].append(again(0.95, "again.copy"))
    assert finding(made, "memory.copy")["status"] == "pass"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"load_before": 4.1, "load_after": 9.0}, "the load was 4.1 on 8 cores before the test"),
        ({"load_before": 0.5, "load_after": 12.5}, "the load was 12.5 on 8 cores at the end"),
    ],
)
def test_load(facts: dict[str, float], words: str) -> None:
    """On a machine that was busy nothing fails."""
    found = finding(slow(**facts))
    assert found["status"] == "warn" and words in found["seen"]


def test_own_load() -> None:
    """The load of the benchmark's own threads is no excuse; nor is a load where the cores are not known."""
    assert finding(slow(load_before=3.9, load_after=11.9))["status"] == "fail"
    made = slow(load_before=1.5)
    made["facts"]["cpu"]["quota_cores"] = 2.0
    assert finding(made)["status"] == "warn"
    del made["facts"]["cpu"]
    assert finding(made)["status"] == "fail"


def test_unsteady_machine() -> None:
    found = finding(slow(probes=(("machine.steady", "warn"),)))
    assert found["status"] == "warn" and "machine.steady" in found["seen"]
    assert finding(slow(probes=(("machine.steady", "pass"),)))["status"] == "fail"
