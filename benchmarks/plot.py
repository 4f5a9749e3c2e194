"""The plot of cost against size, as an SVG that follows the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.floor import total
from benchmarks.goals import middle
from benchmarks.workloads import BUILDER, NO_BYTECODE

_WIDTH, _HEIGHT = 860, 400
_STYLE = """\
  svg { color: #1f2328; background: #ffffff; font: 13px system-ui, sans-serif; }
  text { fill: currentColor; }
  .grid { stroke: currentColor; stroke-opacity: .15; }
  .line { fill: none; stroke-width: 2; }
  .c0 { stroke: #0969da; } .c1 { stroke: #bc4c00; } .c2 { stroke: #57606a; stroke-dasharray: 5 4; }
  .f0 { fill: #0969da; } .f1 { fill: #bc4c00; } .f2 { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    svg { color: #e6edf3; background: #0d1117; }
    .c0 { stroke: #58a6ff; } .c1 { stroke: #f0883e; } .c2 { stroke: #9da7b3; }
    .f0 { fill: #58a6ff; } .f1 { fill: #f0883e; } .f2 { fill: #9da7b3; }
  }
"""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """A diagram with logarithmic axes."""

    title: str
    left: int
    lines: Mapping[str, Points]
    top: int = 50
    width: int = 340
    height: int = 260


def plot(sizes: Sequence[Mapping[str, Any]], date: str) -> str:
    """The SVG: CPU seconds and time of a cold build against the unpacked bytes of its packages.

    Args:
        sizes: the points of a run's results.
        date: the day of the run.
    """

    def line(value: Callable[[Mapping[str, Any]], float]) -> Points:
        return [(point["floor"]["unpacked"] / 1e9, value(point)) for point in sizes]

    def ours(figure: str) -> dict[str, Points]:
        return {
            way: line(lambda point, way=way: middle(point["ways"][way]["cold"], figure))  # type: ignore[misc]
            for way in (BUILDER, NO_BYTECODE)
        }

    cpu = {**ours("cpu"), "the machine's limit": line(lambda point: total(point["floor"]))}
    panels = [Panel("CPU seconds", 60, cpu), Panel("seconds", 490, ours("seconds"))]
    counts = ", ".join(str(point["packages"]) for point in sizes)
    body = [part for panel in panels for part in _panel(panel)]
    body += [f'<text x="60" y="22">Cold build and push of {counts} packages, {escape(date)}</text>']
    for number, name in enumerate(cpu):
        x = 60 + 250 * number
        body.append(f'<path class="line c{number}" d="M{x} 380h28"/>')
        body.append(f'<text x="{x + 36}" y="385">{escape(name)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            "<title>Cost of a cold build against the size of its packages</title>",
            f"<style>\n{_STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    x_ticks, y_ticks = (ticks([point[axis] for point in points]) for axis in (0, 1))

    def x_of(value: float) -> float:
        return panel.left + panel.width * _share(value, x_ticks)

    def y_of(value: float) -> float:
        return panel.top + panel.height * (1 - _share(value, y_ticks))

    right, bottom = panel.left + panel.width, panel.top + panel.height
    out = [f'<text x="{panel.left}" y="{panel.top - 8}">{escape(panel.title)}</text>']
    for tick in x_ticks:
        x = x_of(tick)
        out.append(f'<path class="grid" d="M{x:.1f} {panel.top}V{bottom}"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g} GB</text>')
    for tick in y_ticks:
        y = y_of(tick)
        out.append(f'<path class="grid" d="M{panel.left} {y:.1f}H{right}"/>')
        out.append(f'<text x="{panel.left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for number, line in enumerate(panel.lines.values()):
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line)
        out.append(f'<path class="line c{number}" d="M{path}"/>')
        out += [
            f'<circle class="f{number}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3"/>'
            for x, y in line
        ]
    return out


def ticks(values: Sequence[float]) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that enclose all values."""
    low, high = min(values), max(values)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    known = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in (1, 2, 5)]
    least = max((tick for tick in known if tick <= low), default=known[0])
    most = min((tick for tick in known if tick >= high and tick > least), default=known[-1])
    return [tick for tick in known if least <= tick <= most]


def _share(value: float, axis: Sequence[float]) -> float:
    """Where a value is between the first and the last tick of a logarithmic axis: 0 to 1."""
    low, high = math.log(axis[0]), math.log(axis[-1])
    return (math.log(value) - low) / (high - low)
