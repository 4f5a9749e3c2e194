"""A finding of the grade: one value, what it was compared with, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.smoke.limits import Status
from builder.smoke.values import Value, number

#: Bases from outside this site.
PUBLISHED = ("achieved", "acceptance", "peak")
_OPTIONAL = ("device", "basis", "value", "unit", "reference", "fraction", "source")


@dataclass(frozen=True, slots=True)
class Finding:
    """An element of a report's ``grade.findings``."""

    id: str
    """The measurement, or the name of a check such as ``device.count``."""
    status: Status
    seen: str
    """What was found, as a sentence for people."""
    advice: str = ""
    """What to do; empty if the status is ``pass``."""
    device: str = ""
    basis: str = ""
    """What the value was compared with, as report.schema.json names it: ``achieved``, ``peak`` and so on."""
    value: float | None = None
    unit: str = ""
    reference: float | None = None
    """What the value was compared with, in ``unit``."""
    fraction: float | None = None
    """The value as a fraction of ``reference``."""
    source: str = ""
    """The title of the publication that the reference is from."""

    def to_json(self) -> dict[str, Any]:
        """The finding as reports store it, without empty fields."""
        out = {"id": self.id, "status": self.status, "seen": self.seen, "advice": self.advice}
        optional = {key: getattr(self, key) for key in _OPTIONAL}
        return out | {key: value for key, value in optional.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Basis:
    """What a value is compared with: the ``basis``, ``reference`` and ``source`` of a finding."""

    name: str
    reference: float | None = None
    source: str = ""


def value_finding(
    value: Value,
    status: Status,
    seen: str,
    advice: str,
    basis: Basis,
    fraction: float | None = None,
) -> Finding:
    """A finding about a value.

    Args:
        value: the value.
        status: the result of the comparison.
        seen: the sentence for people.
        advice: what to do; left out if the status is ``pass``.
        basis: what the value was compared with.
        fraction: the value as a fraction of the reference.
    """
    return Finding(
        id=value.id,
        status=status,
        seen=seen,
        advice="" if status == "pass" else advice,
        device=value.where,
        basis=basis.name,
        value=value.median,
        unit=value.unit,
        reference=basis.reference,
        fraction=None if fraction is None else round(fraction, 4),
        source=basis.source,
    )


def not_evaluated(value: Value, seen: str, reason: str) -> Finding:
    """A low value that says nothing about the GPU."""
    seen = f"{seen}; not evaluated: {reason}"
    return Finding(value.id, "skip", seen, device=value.where, value=value.median, unit=value.unit)


def slowed_by(value: Value, seen: str, variables: Sequence[str], basis: Basis, fraction: float) -> Finding:
    """A low value that environment variables explain."""
    names = ", ".join(variables)
    return value_finding(
        value, "warn", f"{seen}; {names} is set", f"unset {names} and measure again", basis, fraction
    )


def clock_state(state: Mapping[str, Any]) -> str:
    """The state of a GPU after the measurements, which may explain a low value; empty if it is unknown.

    For example ``clock 735 of 1410 MHz, throttled by heat, 91 °C``. The probes gpu.clocks and gpu.ecc
    evaluate this state.
    """
    clock = number(state, "clock_mhz")
    maximum = number(state, "clock_max_mhz")
    temperature = number(state, "temperature_c")
    reasons = state.get("throttled")
    parts = []
    if clock:
        of_maximum = f" of {maximum:.0f}" if maximum else ""
        parts.append(f"clock {clock:.0f}{of_maximum} MHz")
    if isinstance(reasons, list) and reasons:
        parts.append(f"throttled by {' and '.join(str(reason) for reason in reasons)}")
    if temperature is not None:
        parts.append(f"{temperature:.0f} °C")
    return ", ".join(parts)
