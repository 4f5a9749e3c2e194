"""What the drawings of the HTML page share: points, and axes that convert values to coordinates.

builder draws the SVG itself: the page must not need a script or the network. Most of the code chooses what to
show; axes and lines are about 100 lines of it, so a plotting library would save little.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a drawing. Coordinates are in the drawing's own units, y grows downwards."""

    x: float
    y: float
    label: str
    """What the point represents: an image or a measurement."""
    text: str
    """Its value."""
    tip: str
    """The text that a pointer shows."""
    state: str = ""
    """The outcome of the comparison with the previous point: ``slower``, ``faster`` and so on."""
    low: float = 0.0
    """The y coordinate of the lower end of the spread."""
    high: float = 0.0
    below: bool = False
    """Whether the value is printed below the point, because the line comes from above."""

    @property
    def text_y(self) -> float:
        """Where the value is printed: outside of the spread."""
        return max(self.low, self.y + 5) + 15 if self.below else min(self.high or self.y, self.y - 5) - 6


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale: ``low`` is drawn at ``start``, ``high`` at ``end``.

    An empty range is drawn in the middle.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The coordinate of a value."""
        if self.high <= self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
