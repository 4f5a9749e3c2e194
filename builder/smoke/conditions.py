"""The state of a GPU while a value was measured: clock, power, temperature, throttling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.smoke.values import mappings, number

#: Reasons for a lower clock that are usual under full load, on a healthy GPU.
_USUAL = ("power cap",)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The fields are ranges, lowest and highest of all ranks; None if no rank reports them."""

    clock_mhz: tuple[float, float] | None = None
    power_w: tuple[float, float] | None = None
    temperature_c: tuple[float, float] | None = None
    throttled: tuple[str, ...] | None = None
    """Why the clock was limited; None: not known."""

    def __str__(self) -> str:
        """``1,755 MHz, 690 W, 64 °C, power cap``; empty if nothing is known."""
        parts = [self.clock, self.power, self.temperature, ", ".join(self.throttled or ())]
        return ", ".join(part for part in parts if part)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the clock was limited, apart from what is usual under load."""
        return tuple(reason for reason in self.throttled or () if reason not in _USUAL)

    @property
    def clock(self) -> str:
        return _range(self.clock_mhz, "MHz")

    @property
    def power(self) -> str:
        return _range(self.power_w, "W")

    @property
    def temperature(self) -> str:
        return _range(self.temperature_c, "°C")


def conditions_of(measurement: Mapping[str, Any]) -> Conditions:
    """The state of all GPUs of a measurement. Reports of older versions have none."""
    items = [measurement, *mappings(measurement.get("ranks"))]
    return Conditions(
        clock_mhz=_extent(items, "clock_mhz"),
        power_w=_extent(items, "power_w"),
        temperature_c=_extent(items, "temperature_c"),
        throttled=_reasons(items),
    )


def _extent(items: Sequence[Mapping[str, Any]], key: str) -> tuple[float, float] | None:
    found = [value for item in items if (value := number(item, key)) is not None]
    return (min(found), max(found)) if found else None


def _reasons(items: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    known = [item["throttled"] for item in items if isinstance(item.get("throttled"), list)]
    if not known:
        return None
    return tuple(dict.fromkeys(str(reason)[:60] for reasons in known for reason in reasons[:8]))[:4]


def _range(values: tuple[float, float] | None, unit: str) -> str:
    if values is None:
        return ""
    low, high = (f"{value:,.0f}" for value in values)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
