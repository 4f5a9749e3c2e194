"""Grading devices by their peers: devices of the same kind in one run reach the same speed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from builder.smoke.finding import Basis, Finding, clock_state, value_finding
from builder.smoke.limits import LIMITS, Status
from builder.smoke.values import SIGMAS, Report, Value, facts_of, format_value, usable_measurements, values_of

#: Measurements that are compared. Others depend on what the devices share, or on files.
_COMPARED = ("matmul.", "memory.", "conv.", "attention", "training", "transfer.", "cpu.peak")
#: Those of them that also depend on the host. If slow, they warn and never fail.
_HOST_DEPENDENT = ("training", "transfer.")
_GPU_ADVICE = (
    "check its clock, temperature and errors (nvidia-smi -q, rocm-smi -a), "
    "and exclude it from jobs until it is repaired"
)
_CPU_ADVICE = "other processes use its cores, or it has fewer cores: see cpu.affinity"


@dataclass(frozen=True, slots=True)
class _Peers:
    """Devices of the same kind, and the speed that is normal for them."""

    name: str
    count: int
    speed: float
    """The normal value; the inverse of it if lower values are better."""


def grade_by_peers(report: Report, devices: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Reports each device that is slower than its peers.

    Args:
        report: the report.
        devices: the facts about its GPUs.
    """
    for measurement in usable_measurements(report):
        if not str(measurement.get("id")).startswith(_COMPARED):
            continue
        groups: dict[str, list[Value]] = defaultdict(list)
        for value in values_of(measurement):
            name = facts_of(value, devices).get("name") or value.device.partition(":")[0]
            groups[str(name)].append(value)
        for name, values in groups.items():
            yield from _slow_devices(name, values, devices)


def _slow_devices(name: str, values: Sequence[Value], devices: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if len(values) < 2 or not all(v.median > 0 for v in values):
        return
    speeds = [_speed(value) for value in values]
    # With two devices the faster one is the reference, with more devices the median.
    normal = max(speeds) if len(speeds) == 2 else statistics.median(speeds)
    peers = _Peers(name, len(values), normal)
    for value in values:
        finding = _compare(value, peers, clock_state(facts_of(value, devices)))
        if finding is not None:
            yield finding


def _speed(value: Value) -> float:
    return value.median if value.higher_is_better else 1 / value.median


def _compare(value: Value, peers: _Peers, clock: str) -> Finding | None:
    """A finding about a device that is slower than its peers; None if it is not."""
    fraction = _speed(value) / peers.speed
    best_case = fraction * (1 + SIGMAS * value.error / value.median)
    warn_below, fail_below = LIMITS["equals"]
    if best_case >= warn_below:
        return None
    may_fail = value.on_gpu and not value.id.startswith(_HOST_DEPENDENT)
    status: Status = "fail" if may_fail and best_case < fail_below else "warn"
    normal = peers.speed if value.higher_is_better else 1 / peers.speed
    seen = (
        f"{value.where}: {format_value(value.median, value.unit)}; "
        f"{peers.count} x {peers.name} typically reach {format_value(normal, value.unit)}"
    )
    if clock:
        seen += f"; {clock}"
    advice = _GPU_ADVICE if value.on_gpu else _CPU_ADVICE
    return value_finding(value, status, seen, advice, Basis("equals", normal), fraction)
