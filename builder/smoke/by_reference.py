"""Grading GPUs by published figures and theoretical peaks.

Unknown GPUs are graded by the consistency of their own values. All-reduce is in by_allreduce.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.smoke.causes import slowing_variables, state_of, variables_of
from builder.smoke.finding import Basis, Finding, not_evaluated, slowed_by, value_finding
from builder.smoke.limits import (
    CONSISTENCY_LIMITS,
    HOST_BOUND_S,
    IMPOSSIBLE,
    LEAST_PRODUCT,
    LIMITS,
    SHARED_LINK,
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
    mappings,
    number,
    rank_item,
    usable_measurements,
    values_of,
)

#: The key of reference.yml that a measurement is compared with.
_REFERENCE_KEYS = {
    "matmul.fp64": "fp64",
    "matmul.fp32": "fp32",
    "matmul.tf32": "tf32",
    "matmul.fp16": "fp16",
    "matmul.bf16": "bf16",
    "matmul.fp8": "fp8",
    "memory.copy": "copy",
    "memory.triad": "triad",
    "transfer.h2d_pinned": "transfer",
    "transfer.d2h_pinned": "transfer",
}
#: The key of the peak, where it is another one.
_PEAK_KEYS = {"copy": "memory", "triad": "memory"}
#: Factors from the units of reference.yml (TFLOP/s, GB/s) to those of measurements.
_UNITS = {"gflop_per_s": 1e3, "gb_per_s": 1.0}
#: The name of a basis in a finding.
_BASIS_NAMES = {"achieved": "published", "acceptance": "the acceptance limit", "peak": "peak"}
#: Without it, torch's TF32 on AMD is fp32.
_AMD_TF32 = "HIPBLASLT_ALLOW_TF32"
TOO_LOW_NOTE = "; the reference is too low: please send this report in (CONTRIBUTING.md)"
_UNSTEADY_ADVICE = "the clock is throttled at times (heat, power), or another process uses the GPU"
_IMPOSSIBLE_ADVICE = "no such device is that fast: check the measurement and the device's name"
_TRANSFER_ADVICE = (
    "a narrow or slow PCIe link, or memory of the other socket: "
    "check lspci -vv, and bind the process to the nearest cores"
)


@dataclass(frozen=True, slots=True)
class _Case:
    """A value, the GPU that it was measured on, and what both are compared with."""

    report: Report
    measurement: Mapping[str, Any]
    value: Value
    facts: Mapping[str, Any]
    key: str
    device: Device
    basis: Basis
    limits: Limits

    @property
    def peak(self) -> float | None:
        """The theoretical peak in the unit of the value; None if it is unknown."""
        peak = self.device.peak.get(_PEAK_KEYS.get(self.key, self.key))
        return peak * _UNITS[self.value.unit] if peak else None


def grade_by_reference(
    report: Report, devices: Sequence[dict[str, Any]], figures: References
) -> Iterator[Finding]:
    """Compares the values of each GPU with its published figures, otherwise with its theoretical peak.

    Args:
        report: the report.
        devices: the facts about its GPUs.
        figures: the reference figures.
    """
    uncompared: dict[str, dict[str, Value]] = defaultdict(dict)
    unknown: dict[str, str] = {}
    for measurement in usable_measurements(report):
        key = _REFERENCE_KEYS.get(str(measurement.get("id")))
        for value in values_of(measurement):
            facts = facts_of(value, devices)
            if key is None or not facts or value.unit not in _UNITS:
                continue
            device = figures.find(facts)
            found = _reference(value, key, device, figures) if device is not None else None
            if device is not None and found is not None:
                yield _compare(_Case(report, measurement, value, facts, key, device, *found))
                continue
            uncompared[value.where][key] = value
            if device is None or key == "fp32":
                unknown[value.where] = str(facts.get("name"))
    for where, name in unknown.items():
        seen = f"{where}: no reference figures for {name!r}; its values are only compared with each other"
        yield Finding("device.reference", "skip", seen, device=where)
        yield from _consistency(uncompared[where])


def _reference(value: Value, key: str, device: Device, figures: References) -> tuple[Basis, Limits] | None:
    """What a value is compared with: a published figure, otherwise the peak; None if there is neither."""
    scale = _UNITS[value.unit]
    if device.achieved.get(key):
        return published(device.achieved[key][0], figures, scale)
    peak = device.peak.get(_PEAK_KEYS.get(key, key))
    if not peak:
        return None
    basis = Basis("peak", peak * scale, figures.title(device.peak_source))
    return basis, LIMITS.get(f"peak.{key}", LIMITS["peak"])


def published(figure: Figure, figures: References, scale: float = 1.0) -> tuple[Basis, Limits]:
    """A published figure as what a value is compared with, and its limits.

    Args:
        figure: the figure.
        figures: it is one of these.
        scale: the factor from its unit to that of the value.
    """
    name = "acceptance" if figure.kind == "acceptance" else "achieved"
    basis = Basis(name, figure.value * scale, figures.title(figure.source))
    return basis, figure.limits or LIMITS[figure.kind]


def _compare(case: _Case) -> Finding:
    value, basis = case.value, case.basis
    reference = basis.reference or 0.0
    crowd = _crowd(case)
    limits = (case.limits[0] * SHARED_LINK, 0.0) if crowd > 1 else case.limits
    status, fraction = evaluate(value, reference, limits)
    seen = (
        f"{format_value(value.median, value.unit)}: {fraction:.0%} of {format_value(reference, value.unit)} "
        f"({_BASIS_NAMES[basis.name]} for {case.device.name})"
    )
    if crowd > 1:
        seen += f"; {crowd} GPUs copied at once"
    if status != "pass":
        return _low(case, status, seen, fraction)
    if case.peak and value.lower_bound > IMPOSSIBLE * case.peak and not case.device.boosts:
        return value_finding(value, "warn", seen, _IMPOSSIBLE_ADVICE, basis, fraction)
    if value.spread > UNSTEADY:
        seen += f"; varies by {value.spread:.0%}"
        return value_finding(value, "warn", seen, _UNSTEADY_ADVICE, basis, fraction)
    is_whole = basis.name == "achieved" and not case.device.profile
    if is_whole and value.lower_bound > TOO_LOW * reference:
        seen += TOO_LOW_NOTE
    return value_finding(value, "pass", seen, "", basis, fraction)


def _low(case: _Case, status: Status, seen: str, fraction: float) -> Finding:
    """The finding about a value below its limits: not evaluated if the comparison is unfair."""
    value = case.value
    unfair = _unfair(case)
    if unfair:
        return not_evaluated(value, seen, unfair)
    variables = slowing_variables(case.report, value.id)
    if variables:
        return slowed_by(value, seen, variables, case.basis, fraction)
    state = state_of(value, case.measurement, case.facts)
    seen += f"; {state}" if state else ""
    # No slice was ever measured publicly, and its neighbours use the board's power, too.
    may_fail = not case.device.profile and not (case.key == "tf32" and case.device.is_amd)
    return value_finding(value, status if may_fail else "warn", seen, _advice(case), case.basis, fraction)


def _unfair(case: _Case) -> str:
    """Why a low value says nothing about the GPU; empty if it does."""
    if case.key == "tf32" and case.device.is_amd and variables_of(case.report).get(_AMD_TF32) != "1":
        return f"on AMD, torch uses TF32 with {_AMD_TF32}=1 only"
    size = _largest_size(case)
    is_small = case.value.id.startswith("matmul.") and 0 < size < LEAST_PRODUCT
    if is_small and 2e-9 * size**3 < HOST_BOUND_S * case.value.median:
        return f"only size {size:.0f} fitted the time"
    return ""


def _largest_size(case: _Case) -> float:
    """The largest size that was measured; 0 if the report does not say. Ranks report their fastest one."""
    of_rank = number(rank_item(case.value, case.measurement), "size")
    if case.value.rank is not None and of_rank:
        return of_rank
    found = [number(item, "size") for item in (*mappings(case.measurement.get("sizes")), case.measurement)]
    return max((size for size in found if size is not None), default=0.0)


def _crowd(case: _Case) -> int:
    """The number of GPUs of the value's node that copied at the same time; 1 for what is not a transfer."""
    is_alone = case.measurement.get("alone") is True
    if case.key != "transfer" or case.value.rank is None or is_alone:
        return 1
    return sum(rank.get("host") == case.value.host for rank in mappings(case.measurement.get("ranks")))


def _advice(case: _Case) -> str:
    if case.key == "transfer":
        return _TRANSFER_ADVICE
    tool = "rocm-smi -a" if case.device.is_amd else "nvidia-smi -q -d PERFORMANCE"
    checks = f"clock, power and heat ({tool}), other processes on the GPU"
    if case.key in _PEAK_KEYS:
        driver = ", and the age of its driver, which makes the copies" if case.key == "copy" else ""
        return f"check {checks}{driver}"
    library = "rocBLAS or hipBLASLt" if case.device.is_amd else "cuBLAS"
    advice = f"check {checks}, and the library in the lock: {library}"
    if case.device.is_amd and variables_of(case.report).get("PYTORCH_TUNABLEOP_ENABLED") != "1":
        advice += "; PYTORCH_TUNABLEOP_ENABLED=1 makes torch search for faster products"
    return advice


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
    for key in ("fp32", "copy", "triad"):
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
