"""Grading GPUs by their peers: GPUs of the same kind in one run reach the same speed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.smoke.finding import Case
from builder.smoke.limits import HOST_BOUND_S, LEAST_PRODUCT, LIMITS, floor_of
from builder.smoke.state import not_bound
from builder.smoke.values import (
    Report,
    Value,
    devices_of,
    facts_of,
    number,
    rank_item,
    usable_measurements,
    values_of,
)

_GPU_ADVICE = (
    "check its clock, temperature and errors (nvidia-smi -q, rocm-smi -a), "
    "and exclude it from jobs until it is repaired"
)


def cases_by_peers(report: Report) -> Iterator[Case]:
    """Yield each device's values with what its peers reach.

    An all-reduce is as fast as its slowest rank: its ranks are not compared.
    """
    devices = devices_of(report)
    for measurement in usable_measurements(report):
        groups: dict[str, list[Value]] = defaultdict(list)
        for value in values_of(measurement):
            is_compared = floor_of(value.id, on_gpu=True).decides and value.median > 0
            if value.on_gpu and is_compared and not value.id.startswith("allreduce"):
                groups[str(facts_of(value, devices).get("name") or "GPU")].append(value)
        for name, values in groups.items():
            if len(values) > 1:
                yield from _cases(report, name, measurement, values)


def _cases(
    report: Report, name: str, measurement: Mapping[str, Any], values: Sequence[Value]
) -> Iterator[Case]:
    speeds = [value.median for value in values]
    # With two devices the faster one is the reference, with more devices the median.
    normal = max(speeds) if len(speeds) == 2 else statistics.median(speeds)
    largest = max(_size(value, measurement) for value in values)
    for value in values:
        size = _size(value, measurement)
        had_less_time = size < LEAST_PRODUCT <= largest
        yield Case(
            value,
            measurement,
            "equals",
            normal,
            LIMITS["equals"],
            f"{len(values)} x {name} typically reach it",
            _GPU_ADVICE,
            facts_of(value, devices_of(report)),
            may_fail=_is_of_gpu(value, measurement, normal),
            shown_only=not_bound(value, measurement),
            unfair=f"it had time for size {size:.0f} only" if had_less_time else "",
        )


def _size(value: Value, measurement: Mapping[str, Any]) -> float:
    is_product = value.id.startswith("matmul.")
    return (number(rank_item(value, measurement), "size") or 0.0) if is_product else 0.0


def _is_of_gpu(value: Value, measurement: Mapping[str, Any], normal: float) -> bool:
    """Return whether a low value can only be the GPU's, and not the host's that starts its kernels."""
    flop = number(measurement, "flop")
    is_layer = value.unit == "gflop_per_s" and not value.id.startswith("matmul.")
    is_short = bool(flop) and is_layer and (flop or 0.0) < HOST_BOUND_S * normal * 1e9
    return not value.id.startswith("transfer.") and not is_short
