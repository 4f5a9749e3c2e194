"""Grading GPUs by published figures and theoretical peaks; unknown GPUs by their own fp32.

The bus bandwidth of an all-reduce grows with the size of the array, and depends on the number of GPUs and on
how NCCL sums. A figure counts for its own number of GPUs, for its algorithm, and for arrays of its size or
larger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from builder.smoke.finding import Case, Finding
from builder.smoke.limits import (
    HOST_BOUND_S,
    LEAST_PRODUCT,
    LEAST_REDUCTION,
    LIMITS,
    SHARED_LINK,
    Limits,
)
from builder.smoke.reference import Device, Figure, References
from builder.smoke.state import not_bound, variables_of
from builder.smoke.values import (
    Report,
    Value,
    devices_of,
    facts_of,
    mapping,
    mappings,
    number,
    rank_item,
    usable_measurements,
    values_of,
)

#: The key of reference.yml that a measurement is compared with.
_KEYS = {f"matmul.{key}": key for key in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")} | {
    "memory.copy": "copy",
    "memory.triad": "triad",
    "transfer.h2d_pinned": "transfer",
    "transfer.d2h_pinned": "transfer",
    "allreduce.node": "allreduce",
}
#: The key of the peak, where it is another one.
_PEAK_KEYS = {"copy": "memory", "triad": "memory"}
#: Factors from the units of reference.yml (TFLOP/s, GB/s) to those of measurements.
_UNITS = {"gflop_per_s": 1e3, "gb_per_s": 1.0}
#: Without it, torch's TF32 on AMD is fp32.
_AMD_TF32 = "HIPBLASLT_ALLOW_TF32"
_REDUCE_ADVICE = "NCCL or RCCL does not use the links between the GPUs: NCCL_DEBUG=INFO shows what it uses"
_TRANSFER_ADVICE = (
    "a narrow or slow PCIe link, or memory of the other socket: "
    "check lspci -vv, and bind the process to the nearest cores"
)
_HALF_ADVICE = "its matrix units may be unused: check that this torch is built for it"


def cases_by_reference(report: Report, figures: References) -> Iterator[Case | Finding]:
    """Yield the values of each GPU with its published figure, otherwise with its theoretical peak.

    Args:
        report: the report.
        figures: the reference figures.
    """
    devices = devices_of(report)
    unknown: dict[str, str] = {}
    uncompared: dict[str, dict[str, tuple[Value, Mapping[str, Any]]]] = defaultdict(dict)
    for measurement in usable_measurements(report):
        key = _KEYS.get(str(measurement.get("id")), "")
        for value in _values(measurement, key):
            facts = facts_of(value, devices)
            if not key or not facts or value.unit not in _UNITS:
                continue
            device = figures.find(facts)
            case = None
            if device is not None:
                case = _case(report, measurement, value, device, figures)
            if case is not None:
                yield case
            elif key != "allreduce":
                uncompared[value.where][key] = (value, measurement)
                if device is None or key == "fp32":
                    unknown[value.where] = str(facts.get("name"))
    for where, name in unknown.items():
        seen = f"{where}: no reference figures for {name!r}; its values are only compared with each other"
        yield Finding("device.reference", "skip", seen, device=where)
        yield from _consistency(uncompared[where])


def _values(measurement: Mapping[str, Any], key: str) -> list[Value]:
    """Return all values; of an all-reduce the slowest of each node: it is done when that rank has it."""
    values = values_of(measurement)
    if key != "allreduce":
        return values
    slowest_last = sorted(values, key=lambda value: -value.median)
    return list({value.host: value for value in slowest_last}.values())


def _case(
    report: Report, measurement: Mapping[str, Any], value: Value, device: Device, figures: References
) -> Case | None:
    """Return the case of a value; None if nothing is known that it could be compared with."""
    key = _KEYS[value.id]
    scale = _UNITS[value.unit]
    figure = _figure(report, measurement, key, device)
    peak = device.peak.get(_PEAK_KEYS.get(key, key), 0.0) * scale
    if figure is not None:
        basis = "acceptance" if figure.kind == "acceptance" else "achieved"
        reference, source = figure.value * scale, figures.title(figure.source)
        limits = figure.limits or LIMITS[figure.kind]
    elif peak and key != "allreduce":
        basis, reference, source = "peak", peak, figures.title(device.peak_source)
        limits = LIMITS.get(f"peak.{key}", LIMITS["peak"])
    else:
        return None
    crowd = _crowd(measurement, value) if key == "transfer" else 1
    return Case(
        value,
        measurement,
        basis,
        reference,
        _shared(limits) if crowd > 1 else limits,
        _described(basis, device, figure, crowd),
        _advice(report, key, device),
        facts_of(value, devices_of(report)),
        source,
        peak=peak if peak and not device.boosts else None,
        # No slice was ever measured publicly, and its neighbours use the board's power, too.
        may_fail=not device.profile and not (key == "tf32" and device.is_amd),
        shown_only=not_bound(value, measurement) if key == "transfer" else "",
        unfair=_unfair(report, measurement, value, device, figure),
        is_best=basis == "achieved" and not device.profile and _has_size(measurement, figure),
    )


def _figure(report: Report, measurement: Mapping[str, Any], key: str, device: Device) -> Figure | None:
    """Return the published figure of a value; None if there is none."""
    known = device.achieved.get(key, ())
    if key != "allreduce":
        return known[0] if known else None
    gpus = number(measurement, "members")
    launch = mapping(report.get("launch"))
    if gpus is None and launch.get("nodes", 1) == 1:
        gpus = number(launch, "ranks")
    known = tuple(figure for figure in known if figure.gpus == gpus)
    algorithm = str(measurement.get("algorithm") or "")
    for wanted in (algorithm, "nvls"):  # without a figure for an algorithm: what NCCL chooses
        of_it = tuple(figure for figure in known if wanted and figure.algorithm == wanted)
        if of_it:
            known = of_it
            break
    by_size = sorted(known, key=lambda figure: figure.bytes)
    size = number(measurement, "size") or float("inf")
    smaller = [figure for figure in by_size if figure.bytes <= size]
    return smaller[-1] if smaller else by_size[0] if by_size else None


def _has_size(measurement: Mapping[str, Any], figure: Figure | None) -> bool:
    """Return whether a better value shows that the figure is too low: an array is of its size."""
    size = number(measurement, "size")
    if figure is None or not figure.gpus:
        return True
    return size is not None and figure.bytes <= size < 2 * figure.bytes


def _shared(limits: Limits) -> Limits:
    """Return the limits of a link that may be shared."""
    return limits[0] * SHARED_LINK, 0.0


def _described(basis: str, device: Device, figure: Figure | None, crowd: int) -> str:
    what = {"achieved": "published", "acceptance": "the acceptance limit", "peak": "peak"}[basis]
    if figure is not None and figure.gpus:
        how = f"{figure.algorithm}, " if figure.algorithm else ""
        return f"{what} for {figure.gpus} x {device.name}, {how}{figure.size}"
    at_once = f"; {crowd} GPUs copied at once" if crowd > 1 else ""
    return f"{what} for {device.name}{at_once}"


def _unfair(
    report: Report,
    measurement: Mapping[str, Any],
    value: Value,
    device: Device,
    figure: Figure | None,
) -> str:
    """Return why a low value says nothing about the GPU; empty if it does."""
    key = _KEYS[value.id]
    if key == "tf32" and device.is_amd and variables_of(report).get(_AMD_TF32) != "1":
        return f"on AMD, torch uses TF32 with {_AMD_TF32}=1 only"
    size = _largest_size(value, measurement)
    if key == "allreduce" and figure is not None and 0 < size < min(LEAST_REDUCTION, figure.bytes):
        return f"only {size / 2**20:.0f} MiB fitted the time"
    is_small = value.id.startswith("matmul.") and 0 < size < LEAST_PRODUCT
    if is_small and 2e-9 * size**3 < HOST_BOUND_S * value.median:
        return f"only size {size:.0f} fitted the time"
    return ""


def _largest_size(value: Value, measurement: Mapping[str, Any]) -> float:
    """Return the largest size that was measured, or 0. Ranks report their fastest one."""
    of_rank = number(rank_item(value, measurement), "size")
    if value.rank is not None and of_rank:
        return of_rank
    found = [number(item, "size") for item in (*mappings(measurement.get("sizes")), measurement)]
    return max((size for size in found if size is not None), default=0.0)


def _crowd(measurement: Mapping[str, Any], value: Value) -> int:
    """Return the number of GPUs of the value's node that copied at the same time."""
    if value.rank is None or measurement.get("alone") is True:
        return 1
    return sum(rank.get("host") == value.host for rank in mappings(measurement.get("ranks")))


def _advice(report: Report, key: str, device: Device) -> str:
    if key in ("transfer", "allreduce"):
        return _TRANSFER_ADVICE if key == "transfer" else _REDUCE_ADVICE
    tool = "rocm-smi -a" if device.is_amd else "nvidia-smi -q -d PERFORMANCE"
    checks = f"clock, power and heat ({tool}), other processes on the GPU"
    if key in _PEAK_KEYS:
        driver = ", and the age of its driver, which makes the copies" if key == "copy" else ""
        return f"check {checks}{driver}"
    library = "rocBLAS or hipBLASLt" if device.is_amd else "cuBLAS"
    advice = f"check {checks}, and the library in the lock: {library}"
    if device.is_amd and variables_of(report).get("PYTORCH_TUNABLEOP_ENABLED") != "1":
        advice += "; PYTORCH_TUNABLEOP_ENABLED=1 makes torch search for faster products"
    return advice


def _consistency(values: Mapping[str, tuple[Value, Mapping[str, Any]]]) -> Iterator[Case]:
    """Yield an unknown GPU's half precision: it must not be slower than fp32. Nothing here fails."""
    if "fp32" not in values:
        return
    single = values["fp32"][0].median
    for key in ("tf32", "fp16", "bf16"):
        if key in values and single > 0:
            value, measurement = values[key]
            yield Case(
                value,
                measurement,
                "consistency",
                single,
                LIMITS["consistency"],
                "its own fp32",
                _HALF_ADVICE,
                may_fail=False,
            )
