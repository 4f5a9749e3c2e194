"""The figures that a GPU's are compared with: published ones, peaks, and those of its peers.

GPUs of the same kind in one run reach the same speed. The bus bandwidth of an all-reduce grows with
the size of the array, and depends on the number of GPUs and on how NCCL sums. A figure counts for
its own number of GPUs, for its algorithm, and for arrays of its size or larger.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .finding import Case, advice_for
from .limits import HOST_BOUND_S, LEAST_PRODUCT, LEAST_REDUCTION, LIMITS, TABLE, floor_of
from .reference import Device, PublishedFigure, References
from .values import Report, Value, mapping, mappings, number, usable_values, variables_of

#: The key of reference.yml that a measurement is compared with.
_KEYS: Mapping[str, str] = TABLE["keys"]
#: The key of the peak, where it is another one.
_PEAK_KEYS: Mapping[str, str] = TABLE["peak_keys"]
#: Factors from the units of reference.yml (TFLOP/s, GB/s) to those of measurements.
_UNITS = {"gflop_per_s": 1e3, "gb_per_s": 1.0}
_DESCRIBED = {"achieved": "published", "acceptance": "the acceptance limit", "peak": "peak"}


def cases_by_reference(report: Report, figures: References) -> Iterator[Case]:
    """Yield the values of each GPU with its published figure, otherwise with its theoretical peak.

    Args:
        report: the report.
        figures: the reference figures.
    """
    yield from filter(None, (_case(report, value, figures) for value in _values(report)))


def _values(report: Report) -> list[Value]:
    """Return all values; of an all-reduce the slowest of each node, which ends last."""
    graded = (value for value in usable_values(report) if value.id in _KEYS and value.on_gpu)
    values = [value for value in graded if value.unit in _UNITS]
    slowest_last = sorted(values, key=lambda value: -value.median)
    slowest = {value.host: value for value in slowest_last if value.id == "allreduce.node"}
    return [*(value for value in values if value.id != "allreduce.node"), *slowest.values()]


def _case(report: Report, value: Value, figures: References) -> Case | None:
    """Return the case of a value; None if nothing is known that it could be compared with."""
    device = figures.find(value.facts)
    if device is None:
        return None
    key = _KEYS[value.id]
    scale = _UNITS[value.unit]
    known = device.achieved.get(key, ())
    figure = next(iter(known), None)
    if key == "allreduce":
        figure = _reduction(report, value.measurement, known)
    peak = device.peak.get(_PEAK_KEYS.get(key, key), 0.0) * scale
    if figure is not None:
        basis, reference, source = figure.kind, figure.value * scale, figure.source
        limits = figure.limits or LIMITS[basis]
    elif peak:  # an all-reduce has none
        basis, reference, source = "peak", peak, device.peak_source
        limits = LIMITS.get(f"peak.{key}", LIMITS["peak"])
    else:
        return None
    return Case(
        value,
        basis,
        reference,
        limits,
        _described(basis, device, figure),
        _advice(report, key, device),
        figures.title(source),
        peak=None if device.boosts else peak,
        may_fail=not (key == "tf32" and device.is_amd),
        unfair=_unfair(value, figure),
        is_best=basis == "achieved" and _has_size(value.measurement, figure),
    )


def _reduction(
    report: Report, measurement: Mapping[str, Any], known: Sequence[PublishedFigure]
) -> PublishedFigure | None:
    """Return the figure for an all-reduce's number of GPUs, algorithm and size; None if unknown."""
    gpus = number(measurement, "members")
    launch = mapping(report.get("launch"))
    if gpus is None and launch.get("nodes", 1) == 1:
        gpus = number(launch, "ranks")
    algorithm = measurement.get("algorithm") or None

    def preference(figure: PublishedFigure) -> tuple[bool, bool]:
        # without a figure for an algorithm: what NCCL chooses
        return figure.algorithm != algorithm, figure.algorithm != "nvls"

    fitting = sorted((f for f in known if f.gpus == gpus), key=lambda f: f.bytes)
    best = min(map(preference, fitting), default=None)
    by_size = [figure for figure in fitting if preference(figure) == best]
    size = number(measurement, "size") or math.inf
    smaller = [figure for figure in by_size if figure.bytes <= size]
    return next(iter(smaller[-1:] or by_size), None)


def _has_size(measurement: Mapping[str, Any], figure: PublishedFigure | None) -> bool:
    """Return whether a better value shows that the figure is too low: the sizes are alike."""
    size = number(measurement, "size") or 0.0
    return figure is None or not figure.gpus or figure.bytes <= size < 2 * figure.bytes


def _described(basis: str, device: Device, figure: PublishedFigure | None) -> str:
    if figure is not None and figure.gpus:
        how = f"{figure.algorithm}, " if figure.algorithm else ""
        return f"{_DESCRIBED[basis]} for {figure.gpus} x {device.name}, {how}{figure.size}"
    return f"{_DESCRIBED[basis]} for {device.name}"


def _unfair(value: Value, figure: PublishedFigure | None) -> str:
    """Return the reason why a low value is not the GPU's fault; empty if it is."""
    size = _largest_size(value)
    if figure is not None and figure.gpus and 0 < size < min(LEAST_REDUCTION, figure.bytes):
        return f"only {size / 2**20:.0f} MiB fitted the time"
    is_small = value.id.startswith("matmul.") and 0 < size < LEAST_PRODUCT
    if is_small and 2e-9 * size**3 < HOST_BOUND_S * value.median:
        return f"only size {size:.0f} fitted the time"
    return ""


def _largest_size(value: Value) -> float:
    """Return the largest size that was measured, or 0. Ranks report their fastest one."""
    of_rank = number(value.item, "size")
    if value.rank is not None and of_rank:
        return of_rank
    items = (*mappings(value.measurement.get("sizes")), value.measurement)
    found = [number(item, "size") for item in items]
    return max((size for size in found if size is not None), default=0.0)


def _advice(report: Report, key: str, device: Device) -> str:
    tool, library = "nvidia-smi -q -d PERFORMANCE", "cuBLAS"
    if device.is_amd:
        tool, library = "rocm-smi -a", "rocBLAS or hipBLASLt"
    if key in ("transfer", "allreduce", "copy", "triad"):
        return advice_for(key, tool=tool)
    is_tuned = variables_of(report).get("PYTORCH_TUNABLEOP_ENABLED") == "1"
    case = "untuned_product" if device.is_amd and not is_tuned else "product"
    return advice_for(case, tool=tool, library=library)


def cases_by_peers(report: Report) -> Iterator[Case]:
    """Yield each device's values with what its peers reach.

    An all-reduce is as fast as its slowest rank: its ranks are not compared.
    """
    groups: dict[tuple[str, str], list[Value]] = defaultdict(list)
    for value in usable_values(report):
        is_compared = floor_of(value.id, on_gpu=True).decides and value.median > 0
        if value.on_gpu and is_compared and not value.id.startswith("allreduce"):
            groups[value.id, str(value.facts.get("name") or "GPU")].append(value)
    for (_, name), values in groups.items():
        if len(values) > 1:
            yield from _cases_of_group(name, values)


def _cases_of_group(name: str, values: Sequence[Value]) -> Iterator[Case]:
    speeds = [value.median for value in values]
    # With two devices the faster one is the reference, with more devices the median.
    normal = max(speeds) if len(speeds) == 2 else statistics.median(speeds)
    # A GPU that had time for a small product only is not slow.
    sizes = [number(value.item, "size") or 0.0 for value in values]
    for value, size in zip(values, sizes, strict=True):
        had_less_time = value.id.startswith("matmul.") and size < LEAST_PRODUCT <= max(sizes)
        yield Case(
            value,
            "equals",
            normal,
            LIMITS["equals"],
            f"{len(values)} x {name} typically reach it",
            advice_for("slower_than_peers"),
            may_fail=_is_of_gpu(value, normal),
            unfair=f"it had time for size {size:.0f} only" if had_less_time else "",
        )


def _is_of_gpu(value: Value, normal: float) -> bool:
    """Return whether a low value can only be the GPU's, not the host's that starts its kernels."""
    flop = number(value.measurement, "flop") or math.inf
    is_layer = value.unit == "gflop_per_s" and not value.id.startswith("matmul.")
    is_short = is_layer and flop < HOST_BOUND_S * normal * 1e9
    return not value.id.startswith("transfer.") and not is_short
