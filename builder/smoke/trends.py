"""The trends of the HTML page: one measurement on one device over several images."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from builder.smoke.change import Change
from builder.smoke.compare import Comparison
from builder.smoke.conditions import conditions_of
from builder.smoke.drawing import Axis, Point
from builder.smoke.images import ImageRuns
from builder.smoke.machines import machine_of
from builder.smoke.values import (
    Value,
    display_unit,
    format_value,
    three_digits,
    usable_measurements,
    values_of,
)

_WIDTH, _HEIGHT = 320.0, 150.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 14.0, 26.0, 14.0, 46.0
_STATE_ORDER = {"slower": 0, "faster": 1}

Comparisons = Sequence[Comparison | None]
"""For each image the comparison with the image before it; None for the first one."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A drawing: a point for each image, and lines between them."""

    id: str
    device: str
    """Empty for a CPU."""
    better: Literal["higher", "lower"]
    points: tuple[Point, ...]
    lines: tuple[str, ...]
    """SVG polylines. A line ends where the machine changes."""
    unit: str
    change: str
    """The change of the newest image, for example ``14%``; empty if there is none to show."""
    state: str
    """The outcome of the newest image; empty if the measurement is missing there."""
    ratio: float = 1.0
    width: float = _WIDTH
    height: float = _HEIGHT


@dataclass(frozen=True, slots=True)
class _Sample:
    """All runs of one image together."""

    image: int
    """The index of the image."""
    median: float
    """The median of the runs' medians."""
    low: float
    """The lowest median minus its MAD."""
    high: float
    machine: str
    state: str
    """The state of the GPU in the newest run; empty if not known."""


def trends_of(images: Sequence[ImageRuns], comparisons: Comparisons) -> list[Trend]:
    """A trend for each measurement and device of the newest image; the ones that got slower first.

    Args:
        images: the images, the newest last.
        comparisons: the comparison of each image with the image before it.
    """
    newest = images[-1].completed[-1].report
    values: dict[tuple[str, str], Value] = {}
    for measurement in newest["measurements"]:
        for value in values_of(measurement):
            values[value.id, value.device_key] = value
    trends = []
    for value in values.values():
        samples = _samples(images, value)
        if samples:
            trends.append(_draw(value, images, samples, comparisons))
    return sorted(_without_similar(trends), key=_order)


def _order(trend: Trend) -> tuple[int, float]:
    return _STATE_ORDER.get(trend.state, 2), trend.ratio if trend.state == "slower" else 0.0


def _without_similar(trends: Sequence[Trend]) -> Iterator[Trend]:
    """All trends of up to two devices; of more devices, the first one and those that changed."""
    devices = Counter(trend.id for trend in trends)
    seen = set()
    for trend in trends:
        if devices[trend.id] <= 2 or trend.id not in seen or trend.state in ("slower", "faster"):
            yield trend
        seen.add(trend.id)


def _samples(images: Sequence[ImageRuns], wanted: Value) -> list[_Sample]:
    """The sample of each image that has the measurement on the same device."""
    out = []
    for index, image in enumerate(images):
        values, machine, state = _values_of_image(image, wanted)
        if values:
            low, high = min(v.median - v.mad for v in values), max(v.median + v.mad for v in values)
            center = statistics.median(v.median for v in values)
            out.append(_Sample(index, center, max(low, 0.0), high, machine, state))
    return out


def _values_of_image(image: ImageRuns, wanted: Value) -> tuple[list[Value], str, str]:
    """The values of all runs of an image, and machine and state of the newest one."""
    values, machine, state = [], "", ""
    for run in image.completed:
        for measurement in usable_measurements(run.report):
            if measurement["id"] != wanted.id:
                continue
            for value in values_of(measurement):
                if value.device_key == wanted.device_key and value.median > 0:
                    values.append(value)
                    machine = machine_of(run.report, measurement, value)
                    state = str(conditions_of(measurement))
    return values, machine, state


def _draw(
    value: Value, images: Sequence[ImageRuns], samples: Sequence[_Sample], comparisons: Comparisons
) -> Trend:
    device = "" if value.device_key == "cpu" else value.device_key
    changes = [_change_of(comparison, value.id, device) for comparison in comparisons]
    x_axis, y_axis = _axes(len(images), samples)
    divisor, unit = display_unit(y_axis.high, value.unit)
    points: list[Point] = []
    for sample in samples:
        x, y = x_axis.at(sample.image), y_axis.at(sample.median)
        image, change = images[sample.image], changes[sample.image]
        median = format_value(sample.median, value.unit)
        tip = f"{image.label}: {median}, {len(image.completed)} run(s) on {sample.machine}"
        points.append(
            Point(
                x=x,
                y=y,
                label=image.label,
                text=three_digits(sample.median / divisor),
                tip=f"{tip}; {sample.state}" if sample.state else tip,
                state=change.outcome if change else "",
                low=y_axis.at(sample.low),
                high=y_axis.at(sample.high),
                below=bool(points) and points[-1].y < y - 6,
            )
        )
    newest = changes[-1] if samples[-1].image == len(images) - 1 else None
    return Trend(
        id=value.id,
        device=device,
        better="higher" if value.higher_is_better else "lower",
        points=tuple(points),
        lines=tuple(_lines(points, samples)),
        unit=unit,
        change=f"{abs(newest.ratio - 1):.0%}" if newest and newest.outcome != "other" else "",
        state=newest.outcome if newest else "",
        ratio=newest.ratio if newest else 1.0,
    )


def _change_of(comparison: Comparison | None, name: str, device: str) -> Change | None:
    if comparison is None:
        return None
    return next((c for c in comparison.changes if c.id == name and c.device == device), None)


def _axes(images: int, samples: Sequence[_Sample]) -> tuple[Axis, Axis]:
    """The horizontal axis over the images, and the vertical axis over the values."""
    low, high = min(s.low for s in samples), max(s.high for s in samples)
    middle = (low + high) / 2
    # At least 8 % to each side: a steady value must look steady.
    half = max((high - low) / 2 * 1.15, middle * 0.08)
    horizontal = Axis(0, images - 1, _LEFT, _WIDTH - _RIGHT)
    vertical = Axis(max(middle - half, 0.0), middle + half, _HEIGHT - _BOTTOM, _TOP)
    return horizontal, vertical


def _lines(points: Sequence[Point], samples: Sequence[_Sample]) -> Iterator[str]:
    """A polyline for each sequence of two or more points that were measured on the same machine."""
    line: list[str] = []
    machine = samples[0].machine
    for point, sample in zip(points, samples, strict=True):
        if sample.machine != machine:
            if len(line) > 1:
                yield " ".join(line)
            line = []
        machine = sample.machine
        line.append(f"{point.x:.1f},{point.y:.1f}")
    if len(line) > 1:
        yield " ".join(line)
