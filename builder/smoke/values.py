"""The measured values of a smoke report, and how they are printed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Report = dict[str, Any]

#: Standard deviations that a difference must exceed to count.
SIGMAS = 3.0
#: Factor from a median absolute deviation to a standard deviation (normal distribution).
MAD_TO_SIGMA = 1.4826
#: Factor from the standard error of a mean to that of a median (normal distribution).
MEDIAN_ERROR = 1.2533
#: Units of measurements for which lower values are better.
TIME_UNITS = ("s", "ms", "us")

#: By unit: from which value on the larger unit is printed, the larger unit, the smaller unit.
_DISPLAY_UNITS = {
    "gflop_per_s": (1e3, "TFLOP/s", "GFLOP/s"),
    "gb_per_s": (1e3, "TB/s", "GB/s"),
}


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
    device: str = ""
    """``cuda:1`` or ``cpu``; empty if the report names no device."""
    rank: int | None = None
    """The rank that measured it; None in reports of a single process."""
    host: str = ""
    higher_is_better: bool = True

    @property
    def error(self) -> float:
        """The standard error of the median, in ``unit``.

        The MAD ignores outliers, so it assumes that most repeats are normal.
        """
        return MEDIAN_ERROR * MAD_TO_SIGMA * self.mad / math.sqrt(max(self.repeats, 1))

    @property
    def upper_bound(self) -> float:
        """The highest true median that noise allows: the measured one plus :data:`SIGMAS` standard errors."""
        return self.median + SIGMAS * self.error

    @property
    def lower_bound(self) -> float:
        """The lowest true median that noise allows."""
        return self.median - SIGMAS * self.error

    @property
    def spread(self) -> float:
        """The standard deviation of the repeats as a fraction of the median; 0 without a positive median."""
        return MAD_TO_SIGMA * self.mad / self.median if self.median > 0 else 0.0

    @property
    def device_key(self) -> str:
        """What identifies the device among the devices of a report: ``rank 3``, ``cuda:0`` or ``cpu``."""
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


def mapping(value: Any) -> dict[str, Any]:
    """A part of a report that should be a mapping; empty if it is anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """The mappings in a part of a report that should be a list of them; empty if it is anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def findings_of(report: Report) -> list[dict[str, Any]]:
    """The findings of a report's grade; empty if it has none."""
    return list(mapping(report.get("grade")).get("findings", []))


def cores_of(report: Report) -> float | None:
    """The cores that a run could use: those that it may run on, or its quota; None if unknown."""
    cpu = mapping(report.get("facts", {}).get("cpu"))
    limits = [number(cpu, "usable_cores"), number(cpu, "quota_cores")]
    return min((limit for limit in limits if limit is not None), default=None)


def number(item: Mapping[str, Any], key: str) -> float | None:
    """The number under a key of a report; None for any other type, for NaN, and for numbers from 1e18 on."""
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e18 else None


def unit_of(measurement: Mapping[str, Any]) -> str:
    """The unit of a measurement: ``gflop_per_s`` if it has ``median_gflop_per_s``.

    Empty if it has no value.
    """
    for key in measurement:
        if key.startswith("median_") and number(measurement, key) is not None:
            return key.removeprefix("median_")
    return ""


def value_of(measurement: Mapping[str, Any]) -> Value | None:
    """The value of a measurement (of the slowest rank if there are several); None if it has none."""
    unit = unit_of(measurement)
    median = number(measurement, f"median_{unit}") if unit else None
    if median is None:
        return None
    better = measurement.get("better")
    return Value(
        id=str(measurement.get("id")),
        unit=unit,
        median=median,
        mad=number(measurement, f"mad_{unit}") or 0.0,
        repeats=int(number(measurement, "repeats") or 1),
        device=str(measurement.get("device", "")),
        higher_is_better=better == "higher" if better in ("higher", "lower") else unit not in TIME_UNITS,
    )


def values_of(measurement: Mapping[str, Any]) -> list[Value]:
    """The value of a measurement on each device that has one."""
    first = value_of(measurement)
    if first is None:
        return []
    ranks = measurement.get("ranks")
    if not isinstance(ranks, list) or len(ranks) < 2:
        return [first]
    values = [_value_of_rank(first, item) for item in ranks if isinstance(item, dict)]
    return [value for value in values if value is not None]


def _value_of_rank(first: Value, item: Mapping[str, Any]) -> Value | None:
    median = number(item, f"median_{first.unit}")
    if median is None:
        return None
    rank = item.get("rank")
    return replace(
        first,
        median=median,
        mad=number(item, f"mad_{first.unit}") or 0.0,
        device=str(item.get("device", "")),
        rank=rank if isinstance(rank, int) else None,
        host=str(item.get("host", "")),
    )


def rank_item(value: Value, measurement: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a measurement that is about a value's rank; the measurement itself if it has one value."""
    if value.rank is None:
        return measurement
    items = mappings(measurement.get("ranks"))
    return next((item for item in items if item.get("rank") == value.rank), {})


def usable_measurements(report: Report) -> Iterator[dict[str, Any]]:
    """The measurements whose results were correct. A wrong result is a failure, however fast it was."""
    return (m for m in report["measurements"] if m["status"] in ("pass", "warn"))


def devices_of(report: Report) -> list[dict[str, Any]]:
    """The facts about a report's GPUs; empty if the report lists none."""
    return mappings(report.get("facts", {}).get("devices"))


def facts_of(value: Value, devices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts about the GPU that a value was measured on.

    Empty for a CPU and for a GPU that is not listed.
    """
    if not value.on_gpu:
        return {}
    if value.rank is not None:
        return next((d for d in devices if d.get("rank") == value.rank), {})
    position = gpu_index(value.device)
    return devices[position] if position < len(devices) else {}


def gpu_index(device: str) -> int:
    """The number of a GPU: 1 of ``cuda:1``, and 0 of a device without a number."""
    index = device.partition(":")[2]
    return int(index) if re.fullmatch(r"\d{1,5}", index, re.ASCII) else 0


def format_value(value: float, unit: str) -> str:
    """A value with three significant digits and a readable unit: ``247 TFLOP/s``, ``12.5 ms``."""
    factor, text = display_unit(value, unit)
    return f"{three_digits(value / factor)} {text}"


def display_unit(value: float, unit: str) -> tuple[float, str]:
    """The divisor and the readable unit for values of this size.

    For example ``(1000.0, "TFLOP/s")`` for 247000 ``gflop_per_s``.
    """
    if unit not in _DISPLAY_UNITS:
        return 1.0, unit.replace("_per_", "/").replace("_", " ")
    factor, large, small = _DISPLAY_UNITS[unit]
    return (factor, large) if value >= factor else (1.0, small)


def three_digits(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(decimals, 6)}f}"
