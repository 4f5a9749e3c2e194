"""The table of GPU figures of the HTML page: each with the state of the GPU, and what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.smoke.conditions import Conditions, conditions_of
from builder.smoke.finding import PUBLISHED
from builder.smoke.values import Report, Value, display_unit, format_value, number, three_digits, values_of

#: Sustained and burst figures are shown if they differ by more than this.
_DIFFERENT = 0.03
#: What a fraction of a basis is called.
BASIS_NAMES = {
    "achieved": "of published",
    "acceptance": "of acceptance",
    "peak": "of the peak",
    "site": "of this site's median",
    "equals": "of its peers",
    "roofline": "of the roofline",
    "scaling": "of all cores",
}
#: Sizes from here on are bytes, not the length of a matrix.
_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fraction:
    """A figure as a fraction of a reference."""

    status: str
    fraction: float
    name: str
    """What it is a fraction of: ``of published``."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure of the GPUs of a run."""

    id: str
    status: str
    value: str
    """The slowest GPU's value."""
    spread: str
    """``slowest of 8, fastest 251 TFLOP/s``; empty for one GPU."""
    burst: str
    """``262 at first, 240 sustained``, in the unit of the value; empty if they hardly differ."""
    how: str
    """Size, back end and algorithm: ``size 8,192, flash``."""
    conditions: Conditions
    published: Fraction | None
    site: Fraction | None


def figure_rows(report: Report, findings: Sequence[Mapping[str, Any]]) -> list[FigureRow]:
    """A row for each measurement that ran on a GPU, in the order of the report.

    Args:
        report: the report.
        findings: those of its grade.
    """
    rows = []
    for measurement in report["measurements"]:
        values = [value for value in values_of(measurement) if value.on_gpu]
        if values:
            rows.append(_row(measurement, values, findings))
    return rows


def _row(
    measurement: Mapping[str, Any], values: Sequence[Value], findings: Sequence[Mapping[str, Any]]
) -> FigureRow:
    ordered = sorted(values, key=lambda value: value.median, reverse=not values[0].higher_is_better)
    slowest, fastest = ordered[0], ordered[-1]
    of_it = [finding for finding in findings if finding["id"] == slowest.id]
    spread = ""
    if len(values) > 1:
        spread = f"slowest of {len(values)}, fastest {format_value(fastest.median, fastest.unit)}"
    return FigureRow(
        id=slowest.id,
        status=str(measurement["status"]),
        value=format_value(slowest.median, slowest.unit),
        spread=spread,
        burst=burst_text(measurement, slowest.unit),
        how=_how(measurement),
        conditions=conditions_of(measurement),
        published=_worst_fraction(of_it, PUBLISHED),
        site=_worst_fraction(of_it, ("site",)),
    )


def burst_text(measurement: Mapping[str, Any], unit: str) -> str:
    """``262 at first, 240 sustained``; empty if they hardly differ, or are not known."""
    burst, sustained = number(measurement, f"burst_{unit}"), number(measurement, f"sustained_{unit}")
    if not burst or not sustained or abs(burst / sustained - 1) <= _DIFFERENT:
        return ""
    divisor, _ = display_unit(sustained, unit)
    return f"{three_digits(burst / divisor)} at first, {three_digits(sustained / divisor)} sustained"


def _how(measurement: Mapping[str, Any]) -> str:
    parts = [size_text(measurement)] if size_text(measurement) else []
    parts += [str(measurement[key])[:40] for key in ("backend", "algorithm") if measurement.get(key)]
    return ", ".join(parts)


def size_text(measurement: Mapping[str, Any]) -> str:
    """``size 8,192`` of a matrix, ``1 GiB`` of bytes, in powers of 1024 as measurements use; or empty."""
    size = number(measurement, "size")
    if size is None or size <= 0:
        return ""
    if size < _BYTES:
        return f"size {size:,.0f}"
    unit, factor = ("GiB", 1 << 30) if size >= 1 << 30 else ("MiB", 1 << 20)
    return f"{size / factor:,.4g} {unit}"


def _worst_fraction(findings: Sequence[Mapping[str, Any]], bases: Sequence[str]) -> Fraction | None:
    found = [
        Fraction(str(finding["status"]), fraction, BASIS_NAMES[str(finding.get("basis"))])
        for finding in findings
        if finding.get("basis") in bases and (fraction := number(finding, "fraction")) is not None
    ]
    return min(found, key=lambda one: one.fraction, default=None)
