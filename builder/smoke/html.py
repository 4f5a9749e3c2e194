"""The history of smoke tests as one HTML page: no network, no script, light and dark. The template escapes what it is given."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import pairwise
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined

from builder.smoke.grade import (
    Expected,
    References,
    Report,
    devices_of,
    digits,
    grade,
    number,
    scale_of,
    shown,
    value_of,
    values_of,
)
from builder.smoke.history import Comparison, Kept, compare, machine

#: Images that a trend shows, the newest.
IMAGES = 12
#: Size of a trend's drawing and its inner margins (left, top, right, bottom), in the drawing's own units.
_W, _H, _MARGINS = 320.0, 150.0, (14.0, 26.0, 14.0, 46.0)
_ROOF_W, _ROOF_H, _ROOF_MARGINS = 460.0, 330.0, (56.0, 16.0, 20.0, 44.0)
_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class ImageRuns:
    """All runs of one image, the newest last."""

    digest: str
    label: str
    runs: tuple[Kept, ...]

    @property
    def latest(self) -> Kept:
        return self.runs[-1]

    @property
    def counted(self) -> tuple[Kept, ...]:
        """Those that could be carried out; all of them when none could."""
        return tuple(k for k in self.runs if k.report["verdict"] != "error") or self.runs


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a drawing; ``text`` is its figure, ``tip`` what a pointer shows."""

    x: float
    y: float
    label: str
    text: str
    tip: str
    state: str = ""
    low: float = 0.0
    high: float = 0.0
    below: bool = False


@dataclass(frozen=True, slots=True)
class Trend:
    """A measurement over images: polylines (broken where the machine changed) through points."""

    id: str
    device: str
    better: Literal["higher", "lower"]
    points: tuple[Point, ...]
    lines: tuple[str, ...]
    unit: str
    change: str
    state: str
    ratio: float = 1.0
    width: float = _W
    height: float = _H


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A line of the roofline: a memory slope and a roof, or one of them."""

    path: str
    label: str
    x: float
    y: float
    kind: Literal["paper", "measured"]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Arithmetic intensity against speed, both logarithmic."""

    ceilings: tuple[Ceiling, ...]
    points: tuple[Point, ...]
    xticks: tuple[tuple[float, str], ...]
    yticks: tuple[tuple[float, str], ...]
    note: str = ""
    width: float = _ROOF_W
    height: float = _ROOF_H
    margins: tuple[float, float, float, float] = _ROOF_MARGINS


@dataclass(frozen=True, slots=True)
class TargetView:
    """What the page says about a target."""

    name: str
    images: tuple[ImageRuns, ...]
    report: Report
    machines: tuple[str, ...]
    comparison: Comparison | None
    against: str
    trends: tuple[Trend, ...]
    roofline: Roofline | None
    findings: tuple[dict[str, Any], ...]
    complaints: tuple[str, ...]
    rows: tuple[dict[str, Any], ...] = field(default=())

    @property
    def verdict(self) -> str:
        return str(self.report["verdict"])

    @property
    def regressions(self) -> tuple[Any, ...]:
        return self.comparison.regressions if self.comparison else ()


def render(
    targets: Mapping[str, tuple[Sequence[Kept], Sequence[str]]], figures: References, *, made: str
) -> str:
    """The page.

    Args:
        targets: by name, the reports of each and why others cannot be read, as :func:`builder.smoke.history.read_folder` gives
            them.
        figures: to grade reports that were kept without a grade, and for the roofline's peaks.
        made: when, as the page shall say it.
    """
    views = [view(name, kept, complaints, figures) for name, (kept, complaints) in targets.items() if kept]
    unread = [(name, complaints) for name, (kept, complaints) in targets.items() if not kept]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = lambda v: f"{v:.1f}"
    environment.globals["MARGINS"] = _MARGINS
    template = resources.files("builder.smoke").joinpath("report.html.j2").read_text("utf-8")
    return environment.from_string(template).render(
        targets=views, unread=unread, made=made, figures_of=_figures_of
    )


def view(name: str, kept: Sequence[Kept], complaints: Sequence[str], figures: References) -> TargetView:
    """What there is to say about a target that has one report at least."""
    graded = [ensure_graded(k, figures) for k in kept]
    images = _images(graded)
    latest = images[-1].latest
    before = images[-2] if len(images) > 1 else None
    comparison = compare(images[-1].counted, before.counted) if before else None
    findings = latest.report.get("grade", {}).get("findings", [])
    return TargetView(
        name,
        tuple(images),
        latest.report,
        _machines(latest.report),
        comparison,
        before.label if before else "",
        tuple(_trends(images)),
        roofline(images[-1].counted[-1].report, figures),
        tuple(_sorted(findings)),
        tuple(complaints),
        tuple(_rows(images)),
    )


def ensure_graded(kept: Kept, figures: References) -> Kept:
    """A report with a grade: its own, or one by what it says was expected."""
    report = kept.report
    if report["verdict"] == "error" or isinstance(report.get("grade"), dict):
        return kept
    expect = report.get("expect")
    expect = expect if isinstance(expect, dict) else {}
    vendor = expect.get("gpu")
    architectures = tuple(str(a) for a in expect.get("architectures") or ())
    expected = Expected(vendor if vendor in ("nvidia", "amd") else "none", architectures)
    return replace(kept, report=grade(report, figures, expected))


_STATUS_ORDER = {"fail": 0, "warn": 1, "pass": 2, "skip": 3}


def _sorted(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(items, key=lambda i: _STATUS_ORDER.get(str(i.get("status")), 4))


def _images(kept: Sequence[Kept]) -> list[ImageRuns]:
    """Reports by image, in the order in which the images were first tested."""
    groups: dict[str, list[Kept]] = {}
    for k in kept:
        groups.setdefault(k.digest or k.source, []).append(k)
    images = []
    for digest, runs in list(groups.items())[-IMAGES:]:
        images.append(ImageRuns(digest, runs[0].tag or runs[0].started[:10], tuple(runs)))
    labels = [i.label for i in images]
    return [
        replace(i, label=f"{i.label} {i.digest.removeprefix('sha256:')[:4]}")
        if labels.count(i.label) > 1
        else i
        for i in images
    ]


def _machines(report: Report) -> tuple[str, ...]:
    """GPUs with their number, and the processor."""
    facts = report.get("facts", {})
    names = [str(d.get("name")) for d in devices_of(report)]
    counted = [f"{names.count(n)} x {n}" if names.count(n) > 1 else n for n in dict.fromkeys(names)]
    cpu = facts.get("cpu")
    if isinstance(cpu, dict) and cpu.get("model"):
        counted.append(f"{cpu['model']}, {cpu.get('usable_cores', '?')} cores")
    return tuple(counted)


def _rows(images: Sequence[ImageRuns]) -> list[dict[str, Any]]:
    """The table of images, the newest first."""
    out = []
    for i, image in enumerate(images):
        against = compare(image.counted, images[i - 1].counted) if i else None
        out.append({"image": image, "report": image.latest.report, "comparison": against})
    return out[::-1]


def _figures_of(measurement: Mapping[str, Any]) -> str:
    """A measurement in words: its figure, its spread, how often."""
    value = value_of(measurement)
    if value is None:
        return ""
    spread = f" ± {value.mad / value.median:.1%}" if value.median > 0 else ""
    return f"{shown(value.median, value.unit)}{spread} ({value.repeats} times)"


# trends ---------------------------------------------------------------------------------------------------------------


def _trends(images: Sequence[ImageRuns]) -> list[Trend]:
    """A trend for each measurement and device of the newest image; those that got worse first."""
    outcomes = [None, *(compare(b.counted, a.counted) for a, b in pairwise(images))]
    keys = {}
    for measurement in images[-1].counted[-1].report["measurements"]:
        for value in values_of(measurement):
            place = f"rank {value.rank}" if value.rank is not None else value.device
            keys[value.id, place] = value
    trends = []
    for (name, place), value in keys.items():
        points = _series(images, name, place)
        if not points or len({p[1] for p in points if p[1]}) == 0:
            continue
        trends.append(_trend(name, place, value.higher, value.unit, images, points, outcomes))
    devices = Counter(t.id for t in trends)
    first: set[str] = set()
    for t in list(trends):  # of many devices: the first, and those that changed
        if devices[t.id] > 2 and t.id in first and t.state not in ("slower", "faster"):
            trends.remove(t)
        first.add(t.id)
    order = {"slower": 0, "faster": 1}
    return sorted(trends, key=lambda t: (order.get(t.state, 2), t.ratio if t.state == "slower" else 0))


Series = list[tuple[int, float, float, float, str]]
"""Number of the image, median of its runs' medians, lowest and highest median, machine."""


def _series(images: Sequence[ImageRuns], name: str, place: str) -> Series:
    out: Series = []
    for i, image in enumerate(images):
        medians, where = [], ""
        for run in image.counted:
            for measurement in run.report["measurements"]:
                if measurement["id"] != name or measurement["status"] not in ("pass", "warn"):
                    continue
                for value in values_of(measurement):
                    here = f"rank {value.rank}" if value.rank is not None else value.device
                    if here == place and value.median > 0:
                        medians.append((value.median, value.mad))
                        where = machine(run.report, measurement, value)
        if medians:
            centre = statistics.median(m for m, _ in medians)
            low, high = min(m - d for m, d in medians), max(m + d for m, d in medians)
            out.append((i, centre, max(low, 0.0), high, where))
    return out


def _trend(
    name: str,
    place: str,
    higher: bool,
    unit: str,
    images: Sequence[ImageRuns],
    series: Series,
    outcomes: Sequence[Comparison | None],
) -> Trend:
    left, top, right, bottom = _MARGINS
    low, high = min(s[2] for s in series), max(s[3] for s in series)
    middle = (low + high) / 2
    half = max((high - low) / 2 * 1.15, middle * 0.08)  # a steady figure shall look steady
    low, high = max(middle - half, 0.0), middle + half
    step = (_W - left - right) / max(len(images) - 1, 1)

    def across(i: int) -> float:
        return left + i * step if len(images) > 1 else _W / 2

    def down(v: float) -> float:
        return (
            top + (high - v) / (high - low) * (_H - top - bottom) if high > low else (_H - bottom + top) / 2
        )

    factor, people_unit = scale_of(high, unit)
    points: list[Point] = []
    lines: list[list[str]] = []
    line: list[str] = []
    for n, (i, centre, least, most, where) in enumerate(series):
        outcome = outcomes[i]
        changes = (
            [c for c in outcome.changes if c.id == name and c.device == ("" if place == "cpu" else place)]
            if outcome
            else []
        )
        state = changes[0].outcome if changes else ""
        if n and where != series[n - 1][4]:
            lines.append(line)
            line = []
        line.append(f"{across(i):.1f},{down(centre):.1f}")
        tip = f"{images[i].label}: {shown(centre, unit)}, {len(images[i].counted)} run(s) on {where}"
        text = digits(centre / factor)
        falls = (
            bool(points) and points[-1].y < down(centre) - 6
        )  # the line comes from above: the figure goes below
        points.append(
            Point(across(i), down(centre), images[i].label, text, tip, state, down(least), down(most), falls)
        )
    lines.append(line)
    last = outcomes[series[-1][0]]
    changed = (
        [c for c in last.changes if c.id == name and c.device == ("" if place == "cpu" else place)]
        if last
        else []
    )
    state = changed[0].outcome if changed and series[-1][0] == len(images) - 1 else ""
    ratio = changed[0].ratio if state else 1.0
    change = "" if state in ("", "other") else f"{abs(ratio - 1):.0%}"
    return Trend(
        name,
        place if place != "cpu" else "",
        "higher" if higher else "lower",
        tuple(points),
        tuple(" ".join(x) for x in lines if len(x) > 1),
        people_unit,
        change,
        state,
        ratio,
    )


# roofline -------------------------------------------------------------------------------------------------------------


def roofline(report: Report, figures: References) -> Roofline | None:
    """The roofline of a report's first device, or None when it measured no memory or nothing that computes.

    Paper's ceilings are the device's peaks from reference.yml; measured ones are the run's own memory bandwidth and, on CPUs,
    cpu.peak.
    """
    measurements = [m for m in report["measurements"] if m["status"] in ("pass", "warn")]
    by_id = {str(m["id"]): m for m in measurements}
    stream = value_of(by_id.get("memory.triad", {})) or value_of(by_id.get("memory.copy", {}))
    spots = [s for m in measurements if (s := _spot(m)) is not None]
    if stream is None or stream.median <= 0 or not spots:
        return None
    devices = devices_of(report)
    device = figures.find(devices[0]) if devices and stream.device.startswith("cuda") else None
    roofs: list[tuple[str, float, Literal["paper", "measured"]]] = []
    if device:
        same: dict[float, list[str]] = {}
        for key in ("fp32", "tf32", "fp16", "bf16"):
            if key in device.peak and f"matmul.{key}" in by_id:
                same.setdefault(device.peak[key] * 1e3, []).append(key)
        roofs = [(f"{', '.join(keys)} peak", peak, "paper") for peak, keys in same.items()]
    elif (peak := value_of(by_id.get("cpu.peak", {}))) is not None and peak.median > 0:
        roofs = [("cpu.peak", peak.median, "measured")]
    if not roofs:
        best = max(spots, key=lambda s: s[2])
        roofs = [(f"best: {best[0]}", best[2], "measured")]
    bandwidths: list[tuple[str, float, Literal["paper", "measured"]]] = [
        (f"{stream.id}", stream.median, "measured")
    ]
    if device and "memory" in device.peak:
        bandwidths.append(("memory peak", device.peak["memory"], "paper"))
    return _draw(roofs, bandwidths, spots, device.name if device else "")


def _spot(measurement: Mapping[str, Any]) -> tuple[str, float, float, str] | None:
    """Name, intensity in FLOP per byte, GFLOP/s and figure of a measurement that computes."""
    value = value_of(measurement)
    if value is None or value.unit != "gflop_per_s" or value.median <= 0 or value.id == "cpu.peak":
        return None
    flop, moved, size = number(measurement, "flop"), number(measurement, "bytes"), number(measurement, "size")
    precision = value.id.removeprefix("matmul.")
    if flop and moved and flop > 0 and moved > 0:
        intensity = flop / moved
    elif precision in _BYTES and size and size > 0:
        intensity = 2 * size / (3 * _BYTES[precision])  # 2 n^3 operations on three matrices of n^2
    else:
        return None
    return value.id, intensity, value.median, shown(value.median, value.unit)


def _power(n: int) -> str:
    """``10 T`` for 10^4 GFLOP/s."""
    value, letter = (n - 3, "T") if n >= 3 else (n, "G")
    return f"{10.0**value:g} {letter}"


def _draw(
    roofs: Sequence[tuple[str, float, Literal["paper", "measured"]]],
    bandwidths: Sequence[tuple[str, float, Literal["paper", "measured"]]],
    spots: Sequence[tuple[str, float, float, str]],
    note: str,
) -> Roofline:
    left, top, right, bottom = _ROOF_MARGINS
    ridges = [roof / bandwidth for _, roof, _ in roofs for _, bandwidth, _ in bandwidths]
    x0 = math.floor(math.log10(min([*ridges, *(s[1] for s in spots)]) / 3))
    x1 = math.ceil(math.log10(max([*ridges, *(s[1] for s in spots)]) * 2))
    y1 = math.log10(max([*(r for _, r, _ in roofs), *(s[2] for s in spots)]) * 1.8)
    y0 = math.log10(min([min(b for _, b, _ in bandwidths) * 10**x0 * 3, *(s[2] / 3 for s in spots)]))
    y0 = min(y0, math.floor(y1) - 1)  # two ticks at least

    def across(v: float) -> float:
        return left + (math.log10(v) - x0) / (x1 - x0) * (_ROOF_W - left - right)

    def down(v: float) -> float:
        return top + (y1 - math.log10(v)) / (y1 - y0) * (_ROOF_H - top - bottom)

    highest = max(r for _, r, _ in roofs)
    ceilings = []
    for label, bandwidth, kind in bandwidths:
        start = max(10**x0, 10**y0 / bandwidth)
        end = highest / bandwidth
        path = f"{across(start):.1f},{down(start * bandwidth):.1f} {across(end):.1f},{down(highest):.1f}"
        at = math.sqrt(start * end)
        ceilings.append(
            Ceiling(path, f"{label} {shown(bandwidth, 'gb_per_s')}", across(at), down(at * bandwidth), kind)
        )
    fastest = max(b for _, b, _ in bandwidths)
    for label, roof, kind in roofs:
        path = f"{across(roof / fastest):.1f},{down(roof):.1f} {across(10**x1):.1f},{down(roof):.1f}"
        ceilings.append(
            Ceiling(path, f"{label} {shown(roof, 'gflop_per_s')}", _ROOF_W - right, down(roof), kind)
        )
    points = tuple(
        Point(across(x), down(y), name, text, f"{name}: {text} at {x:.3g} FLOP/byte")
        for name, x, y, text in sorted(spots, key=lambda s: -s[2])
    )
    xticks = tuple((across(10.0**n), f"{10.0**n:g}") for n in range(x0, x1 + 1))
    yticks = tuple((down(10.0**n), _power(n)) for n in range(math.ceil(y0), math.floor(y1) + 1))
    return Roofline(tuple(ceilings), points, xticks, yticks, note)
