"""The measured values of a smoke report, the state of the GPUs, and how they are printed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.bench.core import median_key
from builder.bench.report import figures

Report = dict[str, Any]

#: Standard deviations that a difference must exceed to count.
SIGMAS = 3.0
#: Factor from a median absolute deviation to a standard deviation (normal distribution).
MAD_TO_SIGMA = 1.4826
#: Factor from the standard error of a mean to that of a median (normal distribution).
MEDIAN_ERROR = 1.2533
#: Reasons for a lower clock that are usual under full load, on a healthy GPU.
_USUAL = ("power cap",)
#: Units of measurements for which lower values are better.
TIME_UNITS = ("s", "ms", "us")


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a measurement on one device."""

    id: str
    """The measurement, for example ``matmul.bf16``."""
    unit: str
    """The unit as it appears in the report's field names, for example ``gflop_per_s``."""
    median: float
    """The median of all repeats, in ``unit``."""
    mad: float
    """The median absolute deviation of the repeats, in ``unit``."""
    repeats: int
    device: str
    """``cuda:1`` or ``cpu``; empty if the report names no device."""
    rank: int | None
    """The rank that measured it; None in reports of a single process."""
    host: str
    higher_is_better: bool
    measurement: Mapping[str, Any]
    """What it is a value of."""
    item: Mapping[str, Any]
    """The part of the measurement about the rank; all of it if it has one value."""
    facts: Mapping[str, Any]
    """About the GPU; empty for a CPU, and for a GPU that the report does not list."""

    @property
    def error(self) -> float:
        """The standard error of the median, in ``unit``.

        The MAD ignores outliers, so it assumes that most repeats are normal.
        """
        return MEDIAN_ERROR * MAD_TO_SIGMA * self.mad / math.sqrt(max(self.repeats, 1))

    @property
    def upper_bound(self) -> float:
        """The highest true median that noise allows: plus :data:`SIGMAS` standard errors."""
        return self.median + SIGMAS * self.error

    @property
    def lower_bound(self) -> float:
        """The lowest true median that noise allows."""
        return self.median - SIGMAS * self.error

    @property
    def spread(self) -> float:
        """The standard deviation of the repeats as a fraction of the median; 0 if that is 0."""
        return MAD_TO_SIGMA * self.mad / self.median if self.median > 0 else 0.0

    @property
    def device_key(self) -> str:
        """The device's key among the devices of a report: ``rank 3``, ``cuda:0`` or ``cpu``."""
        return f"rank {self.rank}" if self.rank is not None else self.device

    @property
    def where(self) -> str:
        """The device for people: ``cuda:1``, ``rank 3 on n017 (cuda:0)`` or ``cpu``."""
        if self.rank is None:
            return self.device
        host = f" on {self.host}" if self.host else ""
        device = f" ({self.device})" if self.device else ""
        return f"rank {self.rank}{host}{device}"

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def is_unbound(self) -> bool:
        """Whether a transfer is shown and not graded: its memory may be on another NUMA node."""
        return self.id.startswith("transfer.") and self.item.get("bound") is False


def mapping(value: Any) -> dict[str, Any]:
    """Return a part of a report that should be a mapping; empty if it is anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """Return the mappings in a part of a report that should be a list of them, or none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def findings_of(report: Report) -> list[dict[str, Any]]:
    """Return the findings of a report's grade; empty if it has none."""
    return list(mapping(report.get("grade")).get("findings", []))


def model_of(report: Report) -> str:
    """Return the names of a run's GPUs, each once, or the processor's and its number of cores.

    The cores are those that the run could use, by affinity and quota.
    """
    names = sorted({str(device.get("name")) for device in devices_of(report)})
    if names:
        return ", ".join(names)
    cpu = mapping(report.get("facts", {}).get("cpu"))
    name = str(cpu.get("model") or "a CPU")
    limits = [number(cpu, "usable_cores"), number(cpu, "quota_cores")]
    known = [limit for limit in limits if limit is not None]
    return f"{name}, {min(known):g} cores" if known else name


def number(item: Mapping[str, Any], key: str) -> float | None:
    """Return the number under a key; None for other types, NaN, and numbers from 1e18 on."""
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e18 else None


def figures_of(measurement: Mapping[str, Any]) -> str:
    """Return a measurement for people, by what of it is a number; empty if it has no value."""
    numbers = {key: number(measurement, key) for key in measurement}
    return figures({key: value for key, value in numbers.items() if value is not None})


def unit_of(measurement: Mapping[str, Any]) -> str:
    """Return the unit of a measurement: ``gflop_per_s`` if it has ``median_gflop_per_s``.

    Empty if it has no value.
    """
    key = median_key(measurement)
    return key.removeprefix("median_") if number(measurement, key) is not None else ""


def values_of(
    measurement: Mapping[str, Any], devices: Sequence[dict[str, Any]] = ()
) -> list[Value]:
    """Return the value of a measurement on each device that has one.

    Args:
        measurement: an element of a report's ``measurements``.
        devices: the facts about the report's GPUs.
    """
    ranks = mappings(measurement.get("ranks"))
    items = ranks if len(ranks) > 1 else [measurement]
    return list(filter(None, (_value_of(measurement, item, devices) for item in items)))


def _value_of(
    measurement: Mapping[str, Any], item: Mapping[str, Any], devices: Sequence[dict[str, Any]]
) -> Value | None:
    """Return the value of a rank, whose part of a measurement is ``item``, or of all of it."""
    unit = unit_of(measurement)
    median = number(item, f"median_{unit}")
    if median is None:
        return None
    better = measurement.get("better", "lower" if unit in TIME_UNITS else "higher")
    device, rank = str(item.get("device", "")), item.get("rank")
    if item is measurement or not isinstance(rank, int):
        rank = None
    return Value(
        id=str(measurement.get("id")),
        unit=unit,
        median=median,
        mad=number(item, f"mad_{unit}") or 0.0,
        repeats=int(number(measurement, "repeats") or 1),
        device=device,
        rank=rank,
        host=str(item.get("host", "")),
        higher_is_better=better == "higher",
        measurement=measurement,
        item=item,
        facts=_facts_of(device, rank, devices),
    )


def _facts_of(device: str, rank: int | None, devices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts about the GPU of a value; empty if it is not listed."""
    if not device.startswith("cuda"):
        return {}
    if rank is not None:
        return next((d for d in devices if d.get("rank") == rank), {})
    index = device.partition(":")[2]  # empty for the only GPU
    position = int(index) if re.fullmatch(r"\d{1,5}", index, re.ASCII) else 0
    return devices[position] if position < len(devices) else {}


def usable_values(report: Report) -> Iterator[Value]:
    """Yield the values of measurements whose results were correct: a wrong result is a failure."""
    devices = devices_of(report)
    for measurement in report["measurements"]:
        if measurement["status"] in ("pass", "warn"):
            yield from values_of(measurement, devices)


def devices_of(report: Report) -> list[dict[str, Any]]:
    """Return the facts about a report's GPUs; empty if the report lists none."""
    return mappings(report.get("facts", {}).get("devices"))


# the state of the GPUs ---------------------------------------------------------------------------


def variables_of(report: Report) -> Mapping[str, Any]:
    """Return the environment variables in a report's facts."""
    return mapping(report.get("facts", {}).get("variables"))


def shares_gpu(report: Report) -> bool:
    """Return whether another program used the GPUs."""
    probes = (probe for probe in report.get("probes", ()) if probe["id"] == "gpu.idle")
    return any(probe["status"] == "warn" for probe in probes)


def faults_of(measurement: Mapping[str, Any]) -> frozenset[str]:
    """Return the reasons why the clock was limited, apart from those usual under load."""
    return frozenset(_throttled(_items(measurement))) - frozenset(_USUAL)


def state_text(measurement: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> str:
    """Return the state of the GPUs: ``1,410 of 1,980 MHz, 690 W, 64 °C, throttled by heat``.

    Args:
        measurement: which has samples of the state, of each rank or of the only one.
        facts: of the GPU; what was not sampled is its state after the measurements.
    """
    items = _items(measurement)
    after = mapping((facts or {}).get("after"))
    maximum = number(after, "clock_max_mhz")
    of_maximum = f" of {maximum:,.0f}" if maximum else ""
    units = {"clock_mhz": f"{of_maximum} MHz", "power_w": " W", "temperature_c": " °C"}
    ranges = {key: _range(items, key) or _range([after], key) for key in units}
    parts = [f"{shown}{units[key]}" for key, shown in ranges.items() if shown]
    reasons = _throttled(items) or _throttled([after])
    if reasons:
        parts.append(f"throttled by {' and '.join(reasons)}")
    return ", ".join(parts)


def _items(measurement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [measurement, *mappings(measurement.get("ranks"))]


def _throttled(items: Sequence[Mapping[str, Any]]) -> list[str]:
    lists = [item["throttled"] for item in items if isinstance(item.get("throttled"), list)]
    return list(dict.fromkeys(str(reason)[:60] for reasons in lists for reason in reasons[:8]))[:4]


def _range(items: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return ``1,410`` or ``1,410 to 1,980``; empty if no item has the number."""
    found = [value for item in items if (value := number(item, key)) is not None]
    ends = [min(found), max(found)] if found else []
    return " to ".join(dict.fromkeys(f"{value:,.0f}" for value in ends))
