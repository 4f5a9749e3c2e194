"""Grading the all-reduce over the GPUs of a node by published figures.

The bus bandwidth grows with the size of the array, and depends on the number of GPUs and on how NCCL sums:
along a ring, or in the switches between the GPUs (NVLS). A figure counts for its own number of GPUs, for its
algorithm, and for arrays of its size or larger. That rings are used in place of NVLS is for the probe
``nccl.transport`` to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.smoke.by_reference import TOO_LOW_NOTE, published
from builder.smoke.causes import slowing_variables
from builder.smoke.finding import Finding, not_evaluated, slowed_by, value_finding
from builder.smoke.limits import (
    LATENCY_BOUND,
    LEAST_REDUCTION,
    SMALL_SLOWER,
    TOO_LOW,
    UNSTEADY,
    Limits,
    Status,
    evaluate,
)
from builder.smoke.reference import Device, Figure, References
from builder.smoke.values import (
    Report,
    Value,
    facts_of,
    format_value,
    mapping,
    number,
    usable_measurements,
    values_of,
)

_ID = "allreduce.node"
_ADVICE = "NCCL or RCCL does not use the links between the GPUs: NCCL_DEBUG=INFO shows what it uses"
_UNSTEADY_ADVICE = "another job uses the links between the GPUs, or a GPU is slow at times"


def grade_all_reduce(
    report: Report, devices: Sequence[dict[str, Any]], figures: References
) -> Iterator[Finding]:
    """Compares the slowest rank of each node with the published figures for as many GPUs.

    Args:
        report: the report.
        devices: the facts about its GPUs.
        figures: the reference figures.
    """
    for measurement in usable_measurements(report):
        if measurement.get("id") != _ID:
            continue
        gpus = _members(report, measurement)
        for value in _slowest(values_of(measurement)):
            facts = facts_of(value, devices)
            device = figures.find(facts) if facts else None
            if device is None or value.unit != "gb_per_s":
                continue
            known = [figure for figure in device.achieved.get("allreduce", ()) if figure.gpus == gpus]
            if known:
                variables = slowing_variables(report, _ID)
                yield _compare(value, measurement, device, known, figures, variables)


def _members(report: Report, measurement: Mapping[str, Any]) -> float | None:
    """How many GPUs of a node took part."""
    members = number(measurement, "members")
    if members is not None:
        return members
    launch = mapping(report.get("launch"))
    return number(launch, "ranks") if launch.get("nodes", 1) == 1 else None


def _slowest(values: Sequence[Value]) -> list[Value]:
    """The slowest value of each node: a sum is done when the slowest rank has it."""
    by_host: dict[str, Value] = {}
    for value in values:
        if value.host not in by_host or value.median < by_host[value.host].median:
            by_host[value.host] = value
    return list(by_host.values())


def _compare(
    value: Value,
    measurement: Mapping[str, Any],
    device: Device,
    known: Sequence[Figure],
    figures: References,
    variables: Sequence[str],
) -> Finding:
    algorithm = str(measurement.get("algorithm") or "")
    size = number(measurement, "size")
    figure = _figure(_of_algorithm(known, algorithm), size)
    basis, limits = published(figure, figures)
    status, fraction = evaluate(value, figure.value, limits)
    seen = (
        f"{format_value(value.median, value.unit)}: {fraction:.0%} of "
        f"{format_value(figure.value, value.unit)} ({_described(figure, device)})"
    )
    if status != "pass" and size is not None and _is_too_small(size, figure):
        status = _of_small(value, size, figure.value, limits)
    if status == "skip":
        return not_evaluated(value, seen, f"only {(size or 0) / 2**20:.0f} MiB fitted the time")
    if status != "pass" and variables:
        return slowed_by(value, seen, variables, basis, fraction)
    if status == "pass" and value.spread > UNSTEADY:
        seen += f"; varies by {value.spread:.0%}"
        return value_finding(value, "warn", seen, _UNSTEADY_ADVICE, basis, fraction)
    is_same_size = size is not None and figure.bytes <= size < 2 * figure.bytes
    if status == "pass" and is_same_size and basis.name == "achieved" and fraction > TOO_LOW:
        seen += TOO_LOW_NOTE
    return value_finding(value, status, seen, _ADVICE, basis, fraction)


def _of_algorithm(known: Sequence[Figure], algorithm: str) -> Sequence[Figure]:
    """The figures for an algorithm; if it is unknown or has none, those for what NCCL chooses."""
    for wanted in (algorithm, "nvls"):
        chosen = [figure for figure in known if wanted and figure.algorithm == wanted]
        if chosen:
            return chosen
    return known


def _figure(known: Sequence[Figure], size: float | None) -> Figure:
    """The figure for the largest array that is not larger than the measured one; otherwise the smallest."""
    by_size = sorted(known, key=lambda figure: figure.bytes)
    if size is None:
        return by_size[-1]
    return next((figure for figure in reversed(by_size) if figure.bytes <= size), by_size[0])


def _is_too_small(size: float, figure: Figure) -> bool:
    return size < LEAST_REDUCTION and size < figure.bytes


def _of_small(value: Value, size: float, reference: float, limits: Limits) -> Status:
    """The result for an array that is smaller than the published one, and slower."""
    warn_below, fail_below = limits
    if size < LATENCY_BOUND:
        return "skip"
    status, _ = evaluate(value, reference, (warn_below / SMALL_SLOWER, fail_below / SMALL_SLOWER))
    return "skip" if status == "pass" else status


def _described(figure: Figure, device: Device) -> str:
    kind = "the acceptance limit" if figure.kind == "acceptance" else "published"
    how = f"{figure.algorithm}, " if figure.algorithm else ""
    return f"{kind} for {figure.gpus} x {device.name}, {how}{figure.size}"
