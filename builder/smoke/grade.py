"""What a smoke report is worth: its figures against what the hardware can do. docs/grading.md states every rule in words.

:func:`grade` is pure: a report, the reference figures and what the recipe expects go in, the report with a ``grade`` comes out.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

import yaml

from builder.config.recipe import GpuVendor, Recipe

Status = Literal["pass", "warn", "fail", "skip"]
Report = dict[str, Any]

#: Standard deviations by which a figure must lie below a limit to count as below it.
SIGMAS = 3.0
#: A median absolute deviation as a standard deviation, and the standard error of a median over that of a mean (normal noise).
MAD_TO_SIGMA, MEDIAN_ERROR = 1.4826, 1.2533
#: Below these fractions of what the basis says: warn, fail.
LIMITS: dict[str, tuple[float, float]] = {
    "achieved": (0.80, 0.50),  # what others published for this device
    "acceptance": (0.80, 0.50),  # its vendor's lower limit
    "peak": (0.40, 0.20),  # on paper: published figures lie between 0.45 and 0.98 of it
    "peak.memory": (0.60, 0.35),
    "peak.transfer": (0.50, 0.15),
    "equals": (0.90, 0.75),  # devices of the same kind in one run
    "roofline": (0.50, 0.25),  # matrix products on a CPU; other measurements: ROOFLINE
    "scaling": (0.50, 0.25),  # all cores of a CPU against as many times one
}
#: What part of the roofline measured on the spot a CPU must reach, where less than half is right; 0 never fails.
ROOFLINE = {"conv.training": (0.05, 0.0), "attention": (0.05, 0.0)}
#: A GPU's figure that varies by more than this (standard deviation over median) is unsteady.
UNSTEADY = 0.15
#: More than the peak on paper by this factor is no measurement.
IMPOSSIBLE = 1.10
#: On a CPU that loses more than this part of its time to others, no figure fails.
LOST = 0.30
#: Which figure of reference.yml a measurement is held against.
REFERENCE = {
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
#: What devices of the same kind are compared by; the rest is shared between them, or hangs on files.
COMPARED = ("matmul.", "memory.", "conv.", "attention", "training", "transfer.", "cpu.peak")
#: Of these, what a slow one only warns of: it hangs on the host's side.
_HOST_SIDE = ("training", "transfer.")
#: Lower-case units of measurements whose figure is better when it is lower.
TIMES = ("s", "ms", "us")

_ORDER = {"pass": 0, "warn": 1, "fail": 2, "error": 3}


# reference figures ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure: TFLOP/s or GB/s, see reference.yml. ``gpus``: of an all-reduce, over how many."""

    value: float
    kind: str
    source: str
    gpus: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of reference.yml."""

    id: str
    name: str
    match: re.Pattern[str]
    architecture: str
    memory_gib: tuple[float, float]
    multiprocessors: int
    peak: Mapping[str, float]
    peak_source: str
    achieved: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class References:
    """All that reference.yml holds; ``sources`` gives title and address by name."""

    devices: tuple[Device, ...]
    sources: Mapping[str, tuple[str, str]]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> References:
        """From the file's content, which is builder's own: a mistake in it is a bug and raises what it raises."""
        devices = []
        for item in data["devices"]:
            peak = dict(item["peak"])
            source = str(peak.pop("source"))
            low, high = item["memory_gib"]
            achieved = {
                key: Figure(
                    float(f["value"]),
                    f.get("kind", "achieved"),
                    f["source"],
                    f.get("gpus", 0),
                    f.get("note", ""),
                )
                for key, f in item["achieved"].items()
            }
            devices.append(
                Device(
                    item["id"],
                    item["name"],
                    re.compile(item["match"]),
                    item["architecture"],
                    (low, high),
                    item["multiprocessors"],
                    {k: float(v) for k, v in peak.items()},
                    source,
                    achieved,
                )
            )
        return cls(tuple(devices), {k: (v["title"], v["url"]) for k, v in data["sources"].items()})

    def find(self, facts: Mapping[str, Any]) -> Device | None:
        """The entry of a device as a report's ``facts.devices`` has it, or None.

        By the name that torch reports and its memory; where ROCm reports no name, by architecture, memory and compute units.
        """
        name = str(facts.get("name", "")).strip()
        memory = number(facts, "memory_bytes")
        gib = memory / 2**30 if memory else None
        for device in self.devices:
            fits = gib is None or device.memory_gib[0] <= gib <= device.memory_gib[1]
            if device.match.fullmatch(name) and fits:
                return device
        if name in ("", "AMD Radeon Graphics", "AMD Instinct Graphics") and gib is not None:
            for device in self.devices:
                if (
                    facts.get("architecture") == device.architecture
                    and facts.get("multiprocessors") == device.multiprocessors
                    and device.memory_gib[0] <= gib <= device.memory_gib[1]
                ):
                    return device
        return None

    def title(self, source: str) -> str:
        return self.sources.get(source, (source, ""))[0]


@functools.cache
def references() -> References:
    """The figures that come with builder."""
    return References.parse(
        yaml.safe_load(resources.files("builder.smoke").joinpath("reference.yml").read_text("utf-8"))
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """What the image is for, from its recipe and the command line."""

    vendor: GpuVendor = "none"
    architectures: tuple[str, ...] = ()
    devices: int | None = None

    @classmethod
    def of(cls, recipe: Recipe, devices: int | None = None) -> Expected:
        return cls(recipe.gpu.vendor, recipe.gpu.architectures, devices)


# figures of a report --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """A measurement's figure on one device: median, median absolute deviation and number of repeats, in ``unit``."""

    id: str
    unit: str
    median: float
    mad: float
    repeats: int
    device: str = ""
    rank: int | None = None
    host: str = ""
    higher: bool = True

    @property
    def error(self) -> float:
        """The standard error of the median, assuming that most repeats are normal: the MAD looks at no others."""
        return MEDIAN_ERROR * MAD_TO_SIGMA * self.mad / math.sqrt(max(self.repeats, 1))

    @property
    def generous(self) -> float:
        """The median with the benefit of the doubt."""
        return self.median + SIGMAS * self.error

    @property
    def where(self) -> str:
        """``cuda:1``, ``rank 3 on n017``, ``cpu``."""
        if self.rank is None:
            return self.device
        return (
            f"rank {self.rank}"
            + (f" on {self.host}" if self.host else "")
            + (f" ({self.device})" if self.device else "")
        )


def number(item: Mapping[str, Any], key: str) -> float | None:
    """A number of a report, or None for anything else that stands there, and for what is too large to be a figure."""
    value = item.get(key)
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
        else None
    )


def unit_of(measurement: Mapping[str, Any]) -> str:
    """``gflop_per_s`` of a measurement that has ``median_gflop_per_s``; empty when it has no figure."""
    found = (
        k.removeprefix("median_")
        for k in measurement
        if k.startswith("median_") and number(measurement, k) is not None
    )
    return next(found, "")


def value_of(measurement: Mapping[str, Any]) -> Value | None:
    """A measurement's figure (rank 0's, where there are several), or None when it has none."""
    unit = unit_of(measurement)
    median = number(measurement, f"median_{unit}") if unit else None
    if median is None:
        return None
    better = measurement.get("better")
    higher = better == "higher" if better in ("higher", "lower") else unit not in TIMES
    repeats = int(number(measurement, "repeats") or 1)
    mad = number(measurement, f"mad_{unit}") or 0.0
    return Value(
        str(measurement.get("id")),
        unit,
        median,
        mad,
        repeats,
        str(measurement.get("device", "")),
        higher=higher,
    )


def values_of(measurement: Mapping[str, Any]) -> list[Value]:
    """A measurement's figure on each device that has one."""
    own = value_of(measurement)
    ranks = measurement.get("ranks")
    if own is None or not isinstance(ranks, list) or len(ranks) < 2:
        return [own] if own else []
    out = []
    for item in ranks:
        if not isinstance(item, dict) or (median := number(item, f"median_{own.unit}")) is None:
            continue
        mad = number(item, f"mad_{own.unit}") or 0.0
        rank = item.get("rank")
        out.append(
            Value(
                own.id,
                own.unit,
                median,
                mad,
                own.repeats,
                str(item.get("device", "")),
                rank if isinstance(rank, int) else None,
                str(item.get("host", "")),
                own.higher,
            )
        )
    return out


_SCALE = {
    "gflop_per_s": (1e3, "TFLOP/s", "GFLOP/s"),
    "gb_per_s": (1e3, "TB/s", "GB/s"),
    "samples_per_s": (1e3, "k/s", "samples/s"),
}


def shown(value: float, unit: str) -> str:
    """``247 TFLOP/s``, ``1.38 TB/s``, ``12.5 ms``: three digits and a unit for people."""
    factor, text = scale_of(value, unit)
    return f"{digits(value / factor)} {text}"


def scale_of(value: float, unit: str) -> tuple[float, str]:
    """What to divide values of this size by, and the unit that people read then."""
    if unit not in _SCALE:
        return 1.0, unit.replace("_per_", "/").replace("_", " ")
    factor, large, small = _SCALE[unit]
    return (factor, large) if value >= factor else (1.0, small)


def digits(value: float) -> str:
    """Three significant digits, no exponent."""
    places = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(places, 6)}f}"


# grading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement. ``fraction`` is of ``reference`` (in the measurement's unit), which ``basis`` and ``source`` explain."""

    id: str
    status: Status
    seen: str
    advice: str = ""
    device: str = ""
    basis: str = ""
    value: float | None = None
    unit: str = ""
    reference: float | None = None
    fraction: float | None = None
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a report's ``grade.findings`` holds it."""
        keys = ("device", "basis", "value", "unit", "reference", "fraction", "source")
        more = {k: getattr(self, k) for k in keys if getattr(self, k) not in (None, "")}
        return {"id": self.id, "status": self.status, "seen": self.seen, "advice": self.advice, **more}


def grade(report: Report, figures: References, expected: Expected) -> Report:
    """A report with its ``grade``, and with the worse of its own verdict and the grade's as ``verdict``.

    The report is one that :func:`builder.smoke.history.check` found no fault with; it is not changed. The verdict ``error``
    (the test could not be carried out) is left alone.
    """
    devices = devices_of(report)
    findings = [
        *_expectations(report, devices, expected),
        *_by_reference(report, devices, figures),
        *_among_equals(report, devices),
        *_by_roofline(report),
    ]
    statuses = {f.status for f in findings}
    own = next((s for s in ("fail", "warn", "pass") if s in statuses), "skip")
    matched = sorted({d.id for facts in devices if (d := figures.find(facts))})
    verdict = str(report["verdict"])
    if own in _ORDER and _ORDER[own] > _ORDER[verdict]:
        verdict = own
    graded = {"verdict": own, "devices": matched, "findings": [f.to_json() for f in findings]}
    return {**report, "verdict": verdict, "grade": graded}


def devices_of(report: Report) -> list[dict[str, Any]]:
    """The facts of a report's GPUs; empty for anything but a list."""
    facts = report.get("facts", {}).get("devices")
    return [d for d in facts if isinstance(d, dict)] if isinstance(facts, list) else []


def _measurements(report: Report) -> Iterator[dict[str, Any]]:
    """Those with a figure that was found right: what is wrong fails by itself, however fast it is."""
    return (m for m in report["measurements"] if m["status"] in ("pass", "warn"))


def _facts_of(value: Value, devices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of the device that a figure is from; empty for the CPU and for what the report does not tell."""
    if not value.device.startswith("cuda"):
        return {}
    if value.rank is not None:
        return next((d for d in devices if d.get("rank") == value.rank), {})
    index = value.device.partition(":")[2]
    place = int(index) if index.isdigit() else 0
    return devices[place] if place < len(devices) else {}


def _expectations(report: Report, devices: Sequence[dict[str, Any]], expected: Expected) -> Iterator[Finding]:
    """What the recipe says, against what was measured on: a GPU image that ran on the CPU must not pass."""
    measured = {
        str(m.get("device", "")).partition(":")[0] for m in report["measurements"] if m["status"] != "skip"
    }
    if expected.vendor != "none" and "cuda" not in measured and report["verdict"] != "error":
        where = "on the CPU" if "cpu" in measured else "nowhere"
        yield Finding(
            "device.measured",
            "fail",
            f"nothing was measured on a GPU ({where})",
            f"the recipe is for {expected.vendor} GPUs: give the container one, see the probes",
        )
    if expected.devices is not None and devices and len(devices) != expected.devices:
        yield Finding(
            "device.count",
            "fail",
            f"{len(devices)} GPUs, {expected.devices} are expected",
            "look at what the job asked for, and at CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES",
        )
    names = sorted({str(d.get("architecture")) for d in devices})
    strange = [n for n in names if n not in expected.architectures]
    if expected.vendor != "none" and expected.architectures and strange:
        seen = f"{', '.join(strange)}; the recipe is for {', '.join(expected.architectures)}"
        yield Finding(
            "device.architecture",
            "warn",
            seen,
            "these figures say nothing about the recipe's own machine: run it there",
        )


def judge(value: Value, reference: float, limits: tuple[float, float]) -> tuple[Status, float]:
    """Status and fraction of a figure held against a reference of the same unit; what noise explains is a pass."""
    fraction, generous = value.median / reference, value.generous / reference
    warn, fail = limits
    return ("fail" if generous < fail else "warn" if generous < warn else "pass"), fraction


def _judged(
    value: Value,
    status: Status,
    seen: str,
    advice: str,
    basis: str,
    reference: float | None = None,
    fraction: float | None = None,
    source: str = "",
) -> Finding:
    part = None if fraction is None else round(fraction, 4)
    return Finding(
        value.id, status, seen, advice, value.where, basis, value.median, value.unit, reference, part, source
    )


_UNITS = {"gflop_per_s": 1e3, "gb_per_s": 1.0}  # of a reference figure, in the measurement's unit


def _by_reference(
    report: Report, devices: Sequence[dict[str, Any]], figures: References
) -> Iterator[Finding]:
    """GPUs against published figures; what nobody published against the peak; unknown GPUs against themselves."""
    unknown: dict[str, dict[str, Value]] = defaultdict(dict)
    for measurement in _measurements(report):
        key = REFERENCE.get(str(measurement.get("id")), "")
        for value in values_of(measurement):
            facts = _facts_of(value, devices)
            if not key or not facts or value.unit not in _UNITS:
                continue
            device = figures.find(facts)
            if device is None:
                unknown[value.where][key] = value
                continue
            yield from _one(value, key, device, figures, report, _clock(facts))
    for where, own in unknown.items():
        name = next(str(_facts_of(v, devices).get("name")) for v in own.values())
        seen = f"{where}: no figures for {name!r}: graded by whether its own agree"
        yield Finding("device.reference", "skip", seen, device=where)
        yield from _consistent(where, own)


def _clock(facts: Mapping[str, Any]) -> str:
    """What a device's state after the measurements says of a low figure (the probes gpu.clocks and gpu.ecc judge it)."""
    after = facts.get("after")
    if not isinstance(after, dict):
        return ""
    clock, most, heat = (number(after, k) for k in ("clock_mhz", "clock_max_mhz", "temperature_c"))
    reasons = after.get("throttled")
    said = [f"clock {clock:.0f}{f' of {most:.0f}' if most else ''} MHz"] if clock else []
    said += (
        [f"held down by {' and '.join(map(str, reasons))}"] if isinstance(reasons, list) and reasons else []
    )
    said += [f"{heat:.0f} °C"] if heat is not None else []
    return ", ".join(said)


def _one(
    value: Value, key: str, device: Device, figures: References, report: Report, clock: str
) -> Iterator[Finding]:
    scale = _UNITS[value.unit]
    published = device.achieved.get(key)
    if published and published.gpus and not _same_launch(report, published.gpus):
        return
    peak = device.peak.get(key)
    if published:
        basis, reference, source = published.kind, published.value * scale, figures.title(published.source)
    elif peak:
        basis, reference, source = "peak", peak * scale, figures.title(device.peak_source)
    else:
        return
    limits = LIMITS.get(f"{basis}.{key}", LIMITS[basis])
    status, fraction = judge(value, reference, limits)
    whose = f"{_BASIS[basis]} for {device.name}"
    seen = f"{shown(value.median, value.unit)}: {fraction:.0%} of {shown(reference, value.unit)} ({whose})"
    advice = ""
    if status != "pass":
        advice = _advice(key)
        seen += f"; {clock}" if clock else ""
    elif peak and (value.median - SIGMAS * value.error) > IMPOSSIBLE * peak * scale:
        status, advice = (
            "warn",
            "no such device is that fast: is the measurement, or the device's name, right?",
        )
    elif _spread(value) > UNSTEADY:
        status = "warn"
        seen += f"; varies by {_spread(value):.0%}"
        advice = "its clock is held down now and then (heat, power), or another process uses it"
    yield _judged(value, status, seen, advice, basis, reference, fraction, source)


_BASIS = {"achieved": "published", "acceptance": "its vendor accepts", "peak": "peak"}


def _advice(key: str) -> str:
    if key == "transfer":
        return "a narrow or slow PCIe link, or memory of the other socket: look at lspci -vv, and bind to the nearest cores"
    if key == "allreduce":
        return "NCCL or RCCL does not use the links between the GPUs: NCCL_DEBUG=INFO says what it uses"
    held = "clock, power and heat (nvidia-smi -q -d PERFORMANCE, rocm-smi), other processes on the device"
    return f"look at {held}" + (
        ", and at the library in the lock: cuBLAS or rocBLAS" if key != "memory" else ""
    )


def _same_launch(report: Report, gpus: int) -> bool:
    launch = report.get("launch")
    return isinstance(launch, dict) and launch.get("ranks") == gpus and launch.get("nodes", 1) == 1


def _spread(value: Value) -> float:
    return MAD_TO_SIGMA * value.mad / value.median if value.median > 0 else 0.0


def _consistent(where: str, own: Mapping[str, Value]) -> Iterator[Finding]:
    """An unknown GPU: half precision is not slower than single; nothing here fails."""
    single = own.get("fp32")
    for key in ("tf32", "fp16", "bf16"):
        value = own.get(key)
        if value is None or single is None:
            continue
        status, fraction = judge(value, single.median, (0.9, 0.0))
        seen = f"{shown(value.median, value.unit)}: {fraction:.2g} times fp32"
        advice = (
            "its matrix units are not used, perhaps: is this torch built for it?" if status != "pass" else ""
        )
        yield _judged(value, status, seen, advice, "consistency", single.median, fraction)
    for key in ("fp32", "memory"):
        if (value := own.get(key)) is not None:
            unsteady = _spread(value) > UNSTEADY
            seen = f"{shown(value.median, value.unit)}, varies by {_spread(value):.1%}"
            advice = "its clock is held down now and then, or another process uses it" if unsteady else ""
            yield _judged(value, "warn" if unsteady else "pass", seen, advice, "consistency")


def _among_equals(report: Report, devices: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Devices of the same name in one run: one that is slower than the others is named."""
    for measurement in _measurements(report):
        if not str(measurement.get("id")).startswith(COMPARED):
            continue
        groups: dict[str, list[Value]] = defaultdict(list)
        for value in values_of(measurement):
            facts = _facts_of(value, devices)
            groups[str(facts.get("name") or value.device.partition(":")[0])].append(value)
        for name, values in groups.items():
            yield from _slow_ones(name, values, devices)


def _slow_ones(name: str, values: Sequence[Value], devices: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if len(values) < 2 or not all(v.median > 0 for v in values):
        return
    speeds = [v.median if v.higher else 1 / v.median for v in values]
    # of two, the faster is right; of more, the middle one
    usual = max(speeds) if len(speeds) == 2 else statistics.median(speeds)
    cpu = not values[0].device.startswith("cuda")
    for value, speed in zip(values, speeds, strict=True):
        fraction = speed / usual
        generous = fraction * (1 + SIGMAS * value.error / value.median)
        warn, fail = LIMITS["equals"]
        if generous >= warn:
            continue
        status: Status = (
            "fail" if generous < fail and not cpu and not value.id.startswith(_HOST_SIDE) else "warn"
        )
        usual_value = usual if value.higher else 1 / usual
        others = f"the {len(values)} of {name} usually do {shown(usual_value, value.unit)}"
        advice = "look at its clock, heat and errors (nvidia-smi -q, rocm-smi -a), and leave it out of jobs until then"
        if cpu:
            advice = "other processes on its cores, or fewer of them: look at cpu.affinity"
        clock = _clock(_facts_of(value, devices))
        seen = f"{value.where}: {shown(value.median, value.unit)}; {others}" + (f"; {clock}" if clock else "")
        yield _judged(value, status, seen, advice, "equals", usual_value, fraction)


#: cpu.peak is that of single precision: what has units of its own is not held against it.
_NOT_SINGLE = ("cpu.peak", "matmul.tf32", "matmul.fp16", "matmul.bf16")


def _by_roofline(report: Report) -> Iterator[Finding]:
    """A CPU against the two ceilings that the same run has measured: arithmetic and memory."""
    on_cpu = {str(m.get("id")): m for m in _measurements(report) if m.get("device") == "cpu"}
    peak = value_of(on_cpu.get("cpu.peak", {}))
    stream = value_of(on_cpu.get("memory.triad", {}))
    if peak and peak.median > 0:
        yield from _scaling(on_cpu["cpu.peak"], peak)
    for name, measurement in on_cpu.items():
        value = value_of(measurement)
        if value is None or value.median <= 0:
            continue
        if name == "memory.copy" and stream and stream.median > 0:
            roof, basis = stream.median, "memory.triad"
        elif value.unit == "gflop_per_s" and name not in _NOT_SINGLE and peak and peak.median > 0:
            roof, basis = _roof(measurement, peak, stream), "the roofline"
        else:
            continue
        status, fraction = judge(value, roof, ROOFLINE.get(name, LIMITS["roofline"]))
        lost = number(measurement, "lost_fraction") or 0.0
        seen = f"{shown(value.median, value.unit)}: {fraction:.0%} of {shown(roof, value.unit)} ({basis}, measured here)"
        if lost > LOST:
            seen += f"; {lost:.0%} of the time went to others"
            status = "warn" if status == "fail" else status
        advice = ""
        if status != "pass":
            advice = "threads (OMP_NUM_THREADS), the cores of this job (cpu.affinity), and torch's own libraries: MKL or OpenBLAS"
        yield _judged(value, status, seen, advice, "roofline", roof, fraction)


def _roof(measurement: Mapping[str, Any], peak: Value, stream: Value | None) -> float:
    """GFLOP/s that the roofline allows at the measurement's arithmetic intensity."""
    flop, moved = number(measurement, "flop"), number(measurement, "bytes")
    if stream is None or stream.median <= 0 or not flop or not moved or flop < 0 or moved < 0:
        return peak.median
    return min(peak.median, flop / moved * stream.median)


def _scaling(measurement: Mapping[str, Any], peak: Value) -> Iterator[Finding]:
    """All cores against as many times one: less means that they share something, or are not all there."""
    items = measurement.get("cores")
    pairs = [
        (int(n), v)
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, dict)
        and (n := number(item, "cores"))
        and (v := number(item, "median_gflop_per_s"))
    ]
    threads = number(measurement, "threads")
    single = next((v for n, v in pairs if n == 1), None)
    if single is None or not threads or threads < 2:
        return
    status, fraction = judge(peak, single * threads, LIMITS["scaling"])
    status = "warn" if status == "fail" else status
    seen = f"{threads:.0f} threads do {peak.median / single:.1f} times what one does"
    advice = "they share cores: look at cpu.affinity, at the control group's quota, and at what else runs"
    found = _judged(
        peak, status, seen, advice if status != "pass" else "", "scaling", single * threads, fraction
    )
    yield replace(found, id="cpu.scaling")


def worst(verdicts: Iterable[str]) -> str:
    """The worst of some verdicts; ``pass`` of none is for the caller to rule out."""
    return max(verdicts, key=lambda v: _ORDER.get(v, 3), default="pass")
