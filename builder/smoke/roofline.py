"""The roofline of the HTML page: speed over arithmetic intensity, both logarithmic.

    FLOP/s
           |      ________________   roof: what the arithmetic units can do
           |    /   x                x: a measurement, at its FLOP per byte
           |  /  x
           |/                        slope: memory bandwidth times FLOP per byte
           +----------------------
                     FLOP per byte

A measurement below the slope is limited by the memory, one below the roof by the arithmetic units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from builder.smoke.drawing import Axis, Point
from builder.smoke.reference import Device, References
from builder.smoke.values import (
    Report,
    Value,
    devices_of,
    format_value,
    number,
    usable_measurements,
    value_of,
)

_WIDTH, _HEIGHT = 460.0, 330.0
_MARGINS = (56.0, 16.0, 20.0, 44.0)
_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}

#: Measurements that may use faster units than those of fp32.
_OTHER_UNITS = ("matmul.tf32", "matmul.fp16", "matmul.bf16")

Kind = Literal["paper", "measured"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A line of the drawing: a roof or a slope."""

    path: str
    """The points of an SVG polyline."""
    label: str
    x: float
    y: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Roofline:
    """The drawing."""

    ceilings: tuple[Ceiling, ...]
    points: tuple[Point, ...]
    xticks: tuple[tuple[float, str], ...]
    yticks: tuple[tuple[float, str], ...]
    note: str = ""
    """The name of the GPU whose peaks are drawn; empty if it is unknown."""
    width: float = _WIDTH
    height: float = _HEIGHT
    margins: tuple[float, float, float, float] = _MARGINS
    """Left, top, right, bottom."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """A roof in GFLOP/s, or a bandwidth in GB/s."""

    label: str
    value: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class _Spot:
    """A measurement in the drawing."""

    id: str
    intensity: float
    """FLOP per byte."""
    speed: float
    """GFLOP/s."""


@dataclass(frozen=True, slots=True)
class _Axes:
    """Both axes; their scales are the decimal logarithms of the values."""

    horizontal: Axis
    vertical: Axis

    def x(self, intensity: float) -> float:
        return self.horizontal.at(math.log10(intensity))

    def y(self, speed: float) -> float:
        return self.vertical.at(math.log10(speed))


def roofline(report: Report, figures: References) -> Roofline | None:
    """The roofline of a report's first device.

    The peaks of reference.yml are drawn as dashed lines. Solid lines are limits that the run has measured:
    its memory bandwidth and, on a CPU, cpu.peak.

    Args:
        report: the report.
        figures: the reference figures.

    Returns:
        The drawing; None if the report has no memory bandwidth or no measurement of arithmetic speed.
    """
    measurements = {str(m["id"]): m for m in usable_measurements(report)}
    stream = value_of(measurements.get("memory.triad", {})) or value_of(measurements.get("memory.copy", {}))
    spots = _spots(measurements)
    if stream is None or stream.median <= 0 or not spots:
        return None
    devices = devices_of(report)
    device = figures.find(devices[0]) if devices and stream.on_gpu else None
    bandwidths = [_Limit(stream.id, stream.median, "measured")]
    if device is not None and "memory" in device.peak:
        bandwidths.append(_Limit("memory peak", device.peak["memory"], "paper"))
    roofs = _roofs(measurements, device, spots)
    if not roofs:
        best = max(spots, key=lambda spot: spot.speed)
        roofs = [_Limit(f"best: {best.id}", best.speed, "measured")]
    return _draw(roofs, bandwidths, spots, device.name if device else "")


def _roofs(
    measurements: Mapping[str, Mapping[str, Any]], device: Device | None, spots: Sequence[_Spot]
) -> list[_Limit]:
    """For a known GPU the peaks in the measured precisions, equal ones together; for a CPU its cpu.peak.

    That is a peak of fp32. What has faster units in another precision gets a roof of its own.
    """
    if device is None:
        peak = value_of(measurements.get("cpu.peak", {}))
        if peak is None or peak.median <= 0:
            return []
        roofs = [_Limit("cpu.peak (fp32)", peak.median, "measured")]
        best = max(spots, key=lambda spot: spot.speed)
        if best.speed > peak.median and best.id in _OTHER_UNITS:
            roofs.append(_Limit(f"best {best.id} (faster units than fp32)", best.speed, "measured"))
        return roofs
    precisions: dict[float, list[str]] = {}
    for precision in _BYTES:
        if precision in device.peak and f"matmul.{precision}" in measurements:
            precisions.setdefault(device.peak[precision] * 1e3, []).append(precision)
    return [_Limit(f"{', '.join(names)} peak", peak, "paper") for peak, names in precisions.items()]


def _spots(measurements: Mapping[str, Mapping[str, Any]]) -> list[_Spot]:
    """The measurements of arithmetic speed whose intensity is known, but for cpu.peak."""
    spots = []
    for measurement in measurements.values():
        value = value_of(measurement)
        if value is None or value.unit != "gflop_per_s" or value.median <= 0 or value.id == "cpu.peak":
            continue
        intensity = _intensity(measurement, value)
        if intensity is not None:
            spots.append(_Spot(value.id, intensity, value.median))
    return spots


def _intensity(measurement: Mapping[str, Any], value: Value) -> float | None:
    """FLOP per byte of a measurement; None if the report does not contain what is needed."""
    flop, moved, size = (number(measurement, key) for key in ("flop", "bytes", "size"))
    if flop and moved and flop > 0 and moved > 0:
        return flop / moved
    precision = value.id.removeprefix("matmul.")
    if precision in _BYTES and size and size > 0:
        # A product of n x n matrices: 2 n^3 operations on three matrices of n^2 elements.
        return 2 * size / (3 * _BYTES[precision])
    return None


def _draw(
    roofs: Sequence[_Limit], bandwidths: Sequence[_Limit], spots: Sequence[_Spot], note: str
) -> Roofline:
    axes = _axes(roofs, bandwidths, spots)
    highest = max(roof.value for roof in roofs)
    fastest = max(bandwidth.value for bandwidth in bandwidths)
    ceilings = [_slope(axes, bandwidth, highest) for bandwidth in bandwidths]
    ceilings += [_roof(axes, roof, fastest) for roof in roofs]
    points = [_point(axes, spot) for spot in sorted(spots, key=lambda spot: -spot.speed)]
    x_axis, y_axis = axes.horizontal, axes.vertical
    x_powers = range(int(x_axis.low), int(x_axis.high) + 1)
    y_powers = range(math.ceil(y_axis.low), math.floor(y_axis.high) + 1)
    return Roofline(
        ceilings=tuple(ceilings),
        points=tuple(points),
        xticks=tuple((x_axis.at(n), f"{10.0**n:g}") for n in x_powers),
        yticks=tuple((y_axis.at(n), _power(n)) for n in y_powers),
        note=note,
    )


def _axes(roofs: Sequence[_Limit], bandwidths: Sequence[_Limit], spots: Sequence[_Spot]) -> _Axes:
    """Axes that show all spots, and the ridges, where slopes and roofs meet."""
    left, top, right, bottom = _MARGINS
    ridges = [roof.value / bandwidth.value for roof in roofs for bandwidth in bandwidths]
    intensities = ridges + [spot.intensity for spot in spots]
    x_low = math.floor(math.log10(min(intensities) / 3))
    x_high = math.ceil(math.log10(max(intensities) * 2))

    speeds = [spot.speed for spot in spots]
    slowest_bandwidth = min(bandwidth.value for bandwidth in bandwidths)
    y_high = math.log10(max([*speeds, *(roof.value for roof in roofs)]) * 1.8)
    y_low = math.log10(min(slowest_bandwidth * 10**x_low * 3, min(speeds) / 3))
    y_low = min(y_low, math.floor(y_high) - 1)  # at least two ticks

    horizontal = Axis(x_low, x_high, left, _WIDTH - right)
    vertical = Axis(y_low, y_high, _HEIGHT - bottom, top)
    return _Axes(horizontal, vertical)


def _slope(axes: _Axes, bandwidth: _Limit, highest: float) -> Ceiling:
    """The line of a memory bandwidth, from the edge of the drawing to the highest roof."""
    start = max(10**axes.horizontal.low, 10**axes.vertical.low / bandwidth.value)
    end = highest / bandwidth.value
    middle = math.sqrt(start * end)
    left_y = axes.y(start * bandwidth.value)
    return Ceiling(
        path=f"{axes.x(start):.1f},{left_y:.1f} {axes.x(end):.1f},{axes.y(highest):.1f}",
        label=f"{bandwidth.label} {format_value(bandwidth.value, 'gb_per_s')}",
        x=axes.x(middle),
        y=axes.y(middle * bandwidth.value),
        kind=bandwidth.kind,
    )


def _roof(axes: _Axes, roof: _Limit, fastest: float) -> Ceiling:
    """The line of a peak, from the steepest slope to the right edge."""
    start, end, y = axes.x(roof.value / fastest), axes.horizontal.end, axes.y(roof.value)
    return Ceiling(
        path=f"{start:.1f},{y:.1f} {end:.1f},{y:.1f}",
        label=f"{roof.label} {format_value(roof.value, 'gflop_per_s')}",
        x=end,
        y=y,
        kind=roof.kind,
    )


def _point(axes: _Axes, spot: _Spot) -> Point:
    text = format_value(spot.speed, "gflop_per_s")
    tip = f"{spot.id}: {text} at {spot.intensity:.3g} FLOP/byte"
    return Point(axes.x(spot.intensity), axes.y(spot.speed), spot.id, text, tip)


def _power(n: int) -> str:
    """The label of 10^n GFLOP/s in FLOP/s: ``10 T`` for n = 4."""
    value, letter = (n - 3, "T") if n >= 3 else (n, "G")
    return f"{10.0**value:g} {letter}"
