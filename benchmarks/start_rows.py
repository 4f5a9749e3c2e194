"""Rows of the start of images, and a table that compares each with the same row of another image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

#: The suffix of an image's name for its second version, in which one small package differs.
BUMPED = ", bumped"


@dataclass(frozen=True, slots=True)
class StartImage:
    """An image to compare. References are ``HOST/REPOSITORY:TAG`` or ``HOST/REPOSITORY@DIGEST``."""

    name: str
    reference: str
    bumped: str = ""
    """The reference of the second version; empty if there is none."""


def images_of(references: Mapping[str, str]) -> tuple[StartImage, ...]:
    """Pairs references by name: ``NAME`` and ``NAME, bumped`` are two versions of one image."""
    return tuple(
        StartImage(name, reference, references.get(name + BUMPED, ""))
        for name, reference in references.items()
        if not name.endswith(BUMPED)
    )


@dataclass(slots=True)
class StartRow:
    """The repetitions of one measurement."""

    case: str
    tool: str
    """The runtime."""
    image: str
    against: str
    """The image whose row of the same case and tool this one is compared with."""
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU seconds."""
    pull_seconds: list[float] = field(default_factory=list)
    """The part of ``seconds`` that the pull took; empty for imports."""


def render(rows: Sequence[StartRow]) -> str:
    """A Markdown table of medians and their ratios."""
    lines = [
        "| case | tool | image | time | pull | CPU | time, against | CPU, against |",
        "|---" * 8 + "|",
    ]
    by_name = {(row.case, row.tool, row.image): row for row in rows}
    for row in rows:
        other = by_name.get((row.case, row.tool, row.against))
        pull = f"{median(row.pull_seconds):.2f} s" if row.pull_seconds else ""
        time, cpu = median(row.seconds), median(row.cpu)
        ratios = (
            f"{time / median(other.seconds):.2f} | {cpu / median(other.cpu):.2f}"
            if other
            else " | "
        )
        lines.append(
            f"| {row.case} | {row.tool} | {row.image} | {time:.2f} s | {pull} | {cpu:.2f} s | {ratios} |"
        )
    return "\n".join(lines) + "\n"
