"""Grading CPUs by the roofline of the same run: its peak arithmetic speed and its memory bandwidth.

A measurement with few operations per byte cannot exceed what the memory delivers, one with many cannot exceed
the arithmetic peak:

    GFLOP/s
      peak  |        ________   arithmetic bound: cpu.peak
            |      /
            |    /              memory bound: memory.triad x FLOP per byte
            |  /
            +---------------->  FLOP per byte
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from builder.smoke.finding import Basis, Finding, value_finding
from builder.smoke.limits import BUSY, LIMITS, ROOFLINE_LIMITS, evaluate
from builder.smoke.values import (
    Report,
    Value,
    cores_of,
    format_value,
    mappings,
    number,
    usable_measurements,
    value_of,
)

#: cpu.peak is a peak of fp32. Measurements in other precisions may have faster units, so they are not
#: compared with it.
_NOT_FP32 = ("cpu.peak", "matmul.tf32", "matmul.fp16", "matmul.bf16")
_ADVICE = (
    "check the threads (OMP_NUM_THREADS), the cores of this job (cpu.affinity), "
    "and the libraries of torch: MKL or OpenBLAS"
)
_SCALING_ADVICE = (
    "the threads share cores: check cpu.affinity, the CPU quota of the control group, and what else runs"
)
#: The measurement that repeats another one and its limit in turns, if the first one looks too slow.
_AGAIN = {"matmul.fp32": "again.matmul", "memory.copy": "again.copy"}


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a value is compared with."""

    name: str
    speed: float
    busy: str
    """Why nothing fails: the machine was busy. Empty if it was not."""


def grade_by_roofline(report: Report) -> Iterator[Finding]:
    """Compares the values of a CPU with the two limits that the same run has measured."""
    on_cpu = {str(m.get("id")): m for m in usable_measurements(report) if m.get("device") == "cpu"}
    busy = _busy(report)
    peak = _positive_value(on_cpu.get("cpu.peak"))
    stream = _positive_value(on_cpu.get("memory.triad"))
    if peak is not None:
        yield from _scaling(on_cpu["cpu.peak"], peak)
    for name, measurement in on_cpu.items():
        value = _positive_value(measurement)
        if value is None:
            continue
        limit = None
        if name == "memory.copy" and stream is not None:
            limit = _Limit("memory.triad", stream.median, busy)
        elif value.unit == "gflop_per_s" and name not in _NOT_FP32 and peak is not None:
            limit = _Limit("the roofline", _roof(measurement, peak, stream), busy)
        if limit is not None:
            again = _positive_value(on_cpu.get(_AGAIN.get(name, "")))
            yield _compare(value, measurement, limit, again)


def _positive_value(measurement: Mapping[str, Any] | None) -> Value | None:
    value = value_of(measurement or {})
    return value if value is not None and value.median > 0 else None


def _roof(measurement: Mapping[str, Any], peak: Value, stream: Value | None) -> float:
    """GFLOP/s that the roofline allows at the arithmetic intensity of a measurement."""
    flop, moved = number(measurement, "flop"), number(measurement, "bytes")
    if stream is None or not flop or not moved or flop < 0 or moved < 0:
        return peak.median
    return min(peak.median, flop / moved * stream.median)


def _compare(value: Value, measurement: Mapping[str, Any], limit: _Limit, again: Value | None) -> Finding:
    """Compares a value with its limit.

    Args:
        value: the value.
        measurement: what it is from.
        limit: what the value is compared with.
        again: the same value as a fraction of its limit, if both were measured again in turns.
    """
    limits = ROOFLINE_LIMITS.get(value.id, LIMITS["roofline"])
    status, fraction = evaluate(value, limit.speed, limits)
    seen = (
        f"{format_value(value.median, value.unit)}: {fraction:.0%} of "
        f"{format_value(limit.speed, value.unit)} ({limit.name}, measured in this run)"
    )
    if status != "pass" and again is not None:
        # Other programs slow both down alike then, so this ratio counts if it is the better one.
        if again.median > fraction:
            status, _ = evaluate(again, 1.0, limits)
        seen += f"; {again.median:.0%} when both were measured again in turns"
    lost = number(measurement, "lost_fraction") or 0.0
    busy = f"other processes took {lost:.0%} of the time" if lost > BUSY else limit.busy
    if busy and status != "pass":
        seen += f"; {busy}"
        status = "warn"
    return value_finding(value, status, seen, _ADVICE, Basis("roofline", limit.speed), fraction)


def _busy(report: Report) -> str:
    """Why the processor was busy with other work; empty if it was not.

    The load at the end includes this run's own threads: up to one for each core.
    """
    facts = report.get("facts", {})
    cores = cores_of(report) or math.inf
    before, after = number(facts, "load_before") or 0.0, number(facts, "load_after") or 0.0
    if before > cores / 2:
        return f"the load was {before:.1f} on {cores:.0f} cores before the test"
    if after - cores > cores / 2:
        return f"the load was {after:.1f} on {cores:.0f} cores at the end"
    for probe in report.get("probes", []):
        if probe["id"] == "machine.steady" and probe["status"] == "warn":
            return "the machine was busy: see machine.steady"
    return ""


def _scaling(measurement: Mapping[str, Any], peak: Value) -> Iterator[Finding]:
    """Compares the speed of all cores with as many times that of one core.

    Less means that threads share cores.
    """
    threads = number(measurement, "threads")
    single = _single_core(measurement)
    if single is None or not threads or threads < 2:
        return
    ideal = single * threads
    status, fraction = evaluate(peak, ideal, LIMITS["scaling"])
    status = "warn" if status == "fail" else status
    seen = f"{threads:.0f} threads reach {peak.median / single:.1f} times the speed of one"
    finding = value_finding(peak, status, seen, _SCALING_ADVICE, Basis("scaling", ideal), fraction)
    yield replace(finding, id="cpu.scaling")


def _single_core(measurement: Mapping[str, Any]) -> float | None:
    """GFLOP/s of one core; None if that was not measured."""
    for item in mappings(measurement.get("cores")):
        cores, speed = number(item, "cores"), number(item, "median_gflop_per_s")
        if speed and cores is not None and int(cores) == 1:
            return speed
    return None
