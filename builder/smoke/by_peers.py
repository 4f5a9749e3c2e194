"""Grading devices by their peers: devices of the same kind in one run reach the same speed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.smoke.causes import state_of
from builder.smoke.finding import Basis, Finding, value_finding
from builder.smoke.kinds import kind_of
from builder.smoke.limits import HOST_BOUND_S, LEAST_PRODUCT, LIMITS, Status
from builder.smoke.values import (
    SIGMAS,
    Report,
    Value,
    facts_of,
    format_value,
    number,
    rank_item,
    usable_measurements,
    values_of,
)

#: Measurements that are compared, if their kind decides alone. Others depend on what the devices share, on
#: the cores that run the ranks, or on files.
_COMPARED = ("matmul.", "memory.", "conv.training", "attention", "training", "transfer.", "cpu.peak")
#: Those of them that also depend on the host. If slow, they warn and never fail. So do convolutions and
#: attention whose kernels run for less time than the host needs to start them.
_HOST_DEPENDENT = ("training", "transfer.")
_GPU_ADVICE = (
    "check its clock, temperature and errors (nvidia-smi -q, rocm-smi -a), "
    "and exclude it from jobs until it is repaired"
)
_CPU_ADVICE = "other processes use its cores, or it has fewer cores: see cpu.affinity"


@dataclass(frozen=True, slots=True)
class _Peers:
    """Devices of the same kind in a measurement, and the speed that is normal for them."""

    measurement: Mapping[str, Any]
    name: str
    count: int
    speed: float
    """The normal value; the inverse of it if lower values are better."""
    size: float
    """The largest size of a product at which one of them was fastest; 0 if the report does not say."""


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
            if not kind_of(value.id, on_gpu=value.on_gpu).decides:
                continue
            name = facts_of(value, devices).get("name") or value.device.partition(":")[0]
            groups[str(name)].append(value)
        for name, values in groups.items():
            yield from _slow_devices(name, measurement, values, devices)


def _slow_devices(
    name: str, measurement: Mapping[str, Any], values: Sequence[Value], devices: Sequence[dict[str, Any]]
) -> Iterator[Finding]:
    if len(values) < 2 or not all(v.median > 0 for v in values):
        return
    speeds = [_speed(value) for value in values]
    # With two devices the faster one is the reference, with more devices the median.
    normal = max(speeds) if len(speeds) == 2 else statistics.median(speeds)
    size = max(_size(value, measurement) for value in values)
    peers = _Peers(measurement, name, len(values), normal, size)
    for value in values:
        finding = _compare(value, peers, facts_of(value, devices))
        if finding is not None:
            yield finding


def _speed(value: Value) -> float:
    return value.median if value.higher_is_better else 1 / value.median


def _size(value: Value, measurement: Mapping[str, Any]) -> float:
    is_product = value.id.startswith("matmul.")
    return (number(rank_item(value, measurement), "size") or 0.0) if is_product else 0.0


def _had_less_time(value: Value, peers: _Peers) -> bool:
    """Whether a device measured small products only, and another one larger ones."""
    return _size(value, peers.measurement) < LEAST_PRODUCT <= peers.size


def _compare(value: Value, peers: _Peers, facts: Mapping[str, Any]) -> Finding | None:
    """A finding about a device that is slower than its peers; None if it is not."""
    fraction = _speed(value) / peers.speed
    best_case = fraction * (1 + SIGMAS * value.error / value.median)
    warn_below, fail_below = LIMITS["equals"]
    kind = kind_of(value.id, on_gpu=value.on_gpu)
    if kind.host_bound:  # equal GPUs differ by more
        warn_below = 1 - kind.floor
    if best_case >= warn_below:
        return None
    status: Status = "fail" if _may_fail(value, peers) and best_case < fail_below else "warn"
    normal = peers.speed if value.higher_is_better else 1 / peers.speed
    seen = (
        f"{value.where}: {format_value(value.median, value.unit)}; "
        f"{peers.count} x {peers.name} typically reach {format_value(normal, value.unit)}"
    )
    if _had_less_time(value, peers):
        seen += f" with size {peers.size:.0f}, it had time for size {_size(value, peers.measurement):.0f}"
    state = state_of(value, peers.measurement, facts) if facts else ""
    if state:
        seen += f"; {state}"
    advice = _GPU_ADVICE if value.on_gpu else _CPU_ADVICE
    return value_finding(value, status, seen, advice, Basis("equals", normal), fraction)


def _may_fail(value: Value, peers: _Peers) -> bool:
    """Whether a low value can only be the GPU's: not the host's, and not that of a smaller problem."""
    if not value.on_gpu or value.id.startswith(_HOST_DEPENDENT):
        return False
    flop = number(peers.measurement, "flop")
    is_product = value.id.startswith("matmul.")
    if flop and value.unit == "gflop_per_s" and not is_product and flop < HOST_BOUND_S * peers.speed * 1e9:
        return False
    return not _had_less_time(value, peers)
