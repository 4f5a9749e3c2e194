"""Grading GPUs by published figures and theoretical peaks.

Unknown GPUs are graded by the consistency of their own values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.smoke.finding import Basis, Finding, clock_state, value_finding
from builder.smoke.limits import CONSISTENCY_LIMITS, IMPOSSIBLE, LIMITS, UNSTEADY, Status, evaluate
from builder.smoke.reference import Device, References
from builder.smoke.values import Report, Value, facts_of, format_value, usable_measurements, values_of

#: The key of reference.yml that a measurement is compared with.
_REFERENCE_KEYS = {
    "matmul.fp32": "fp32",
    "matmul.tf32": "tf32",
    "matmul.fp16": "fp16",
    "matmul.bf16": "bf16",
    "memory.copy": "memory",
    "memory.triad": "memory",
    "transfer.h2d_pinned": "transfer",
    "transfer.d2h_pinned": "transfer",
    "allreduce.node": "allreduce",
}
#: Factors from the units of reference.yml (TFLOP/s, GB/s) to those of measurements.
_UNITS = {"gflop_per_s": 1e3, "gb_per_s": 1.0}
#: The name of a basis in a finding.
_BASIS_NAMES = {"achieved": "published", "acceptance": "the vendor's acceptance limit", "peak": "peak"}
_UNSTEADY_ADVICE = "the clock is throttled at times (heat, power), or another process uses the GPU"
_IMPOSSIBLE_ADVICE = "no such device is that fast: check the measurement and the device's name"


def grade_by_reference(
    report: Report, devices: Sequence[dict[str, Any]], figures: References
) -> Iterator[Finding]:
    """Compares the values of each GPU with its published figures, otherwise with its theoretical peak.

    Args:
        report: the report.
        devices: the facts about its GPUs.
        figures: the reference figures.
    """
    unknown: dict[str, dict[str, Value]] = defaultdict(dict)
    for measurement in usable_measurements(report):
        key = _REFERENCE_KEYS.get(str(measurement.get("id")))
        for value in values_of(measurement):
            facts = facts_of(value, devices)
            if key is None or not facts or value.unit not in _UNITS:
                continue
            device = figures.find(facts)
            if device is None:
                unknown[value.where][key] = value
                continue
            basis = _basis(value, key, device, figures, report)
            if basis is not None:
                yield _compare(value, key, device, basis, clock_state(facts))
    for where, values in unknown.items():
        first = next(iter(values.values()))
        name = str(facts_of(first, devices).get("name"))
        seen = f"{where}: no reference figures for {name!r}; its values are only compared with each other"
        yield Finding("device.reference", "skip", seen, device=where)
        yield from _consistency(values)


def _basis(value: Value, key: str, device: Device, figures: References, report: Report) -> Basis | None:
    """What a value is compared with: a published figure, otherwise the peak.

    None if there is nothing to compare it with.
    """
    scale = _UNITS[value.unit]
    published = device.achieved.get(key)
    if published is not None:
        if published.gpus and not _has_ranks(report, published.gpus):
            return None
        return Basis(published.kind, published.value * scale, figures.title(published.source))
    peak = device.peak.get(key)
    return Basis("peak", peak * scale, figures.title(device.peak_source)) if peak else None


def _has_ranks(report: Report, gpus: int) -> bool:
    """Whether the report is that of so many ranks on one node."""
    launch = report.get("launch")
    return isinstance(launch, dict) and launch.get("ranks") == gpus and launch.get("nodes", 1) == 1


def _compare(value: Value, key: str, device: Device, basis: Basis, clock: str) -> Finding:
    reference = basis.reference or 0.0
    limits = LIMITS.get(f"{basis.name}.{key}", LIMITS[basis.name])
    status, fraction = evaluate(value, reference, limits)
    seen = (
        f"{format_value(value.median, value.unit)}: {fraction:.0%} of {format_value(reference, value.unit)} "
        f"({_BASIS_NAMES[basis.name]} for {device.name})"
    )
    advice = ""
    peak = device.peak.get(key)
    if status != "pass":
        advice = _advice(key)
        seen += f"; {clock}" if clock else ""
    elif peak and value.lower_bound > IMPOSSIBLE * peak * _UNITS[value.unit]:
        status, advice = "warn", _IMPOSSIBLE_ADVICE
    elif value.spread > UNSTEADY:
        status, advice = "warn", _UNSTEADY_ADVICE
        seen += f"; varies by {value.spread:.0%}"
    return value_finding(value, status, seen, advice, basis, fraction)


def _advice(key: str) -> str:
    if key == "transfer":
        return (
            "a narrow or slow PCIe link, or memory of the other socket: "
            "check lspci -vv, and bind the process to the nearest cores"
        )
    if key == "allreduce":
        return "NCCL or RCCL does not use the links between the GPUs: NCCL_DEBUG=INFO shows what it uses"
    checks = "clock, power and heat (nvidia-smi -q -d PERFORMANCE, rocm-smi), other processes on the GPU"
    if key == "memory":
        return f"check {checks}"
    return f"check {checks}, and the library in the lock: cuBLAS or rocBLAS"


def _consistency(values: Mapping[str, Value]) -> Iterator[Finding]:
    """An unknown GPU: half precision must not be slower than fp32, and values must be steady.

    Nothing here fails.
    """
    single = values.get("fp32")
    if single is not None:
        for key in ("tf32", "fp16", "bf16"):
            value = values.get(key)
            if value is not None:
                yield _compare_with_fp32(value, single)
    for key in ("fp32", "memory"):
        value = values.get(key)
        if value is not None:
            seen = f"{format_value(value.median, value.unit)}, varies by {value.spread:.1%}"
            status: Status = "warn" if value.spread > UNSTEADY else "pass"
            yield value_finding(value, status, seen, _UNSTEADY_ADVICE, Basis("consistency"))


def _compare_with_fp32(value: Value, single: Value) -> Finding:
    status, fraction = evaluate(value, single.median, CONSISTENCY_LIMITS)
    seen = f"{format_value(value.median, value.unit)}: {fraction:.2g} times fp32"
    advice = "its matrix units may be unused: check that this torch is built for it"
    return value_finding(value, status, seen, advice, Basis("consistency", single.median), fraction)
