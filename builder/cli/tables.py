"""Fits tables into the width of a terminal, without cutting a word."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from builder.core.text import Table

_GAP = "  "
_INDENT = "    "


def fitted(table: Table, width: int | None) -> list[str]:
    """Return the lines of a table that is not wider than ``width``, unless a single word is.

    Without rows these are its title and caption.

    A table that fits has a line for each row. Otherwise the columns that do not fit are below the
    first ones, with their headers::

        target  groups  GPU
        lumi-g  ml gui  amd gfx90a
            base: docker://docker.io/library/debian:bookworm
            description: LUMI-G, AMD MI250X

    Args:
        table: the table.
        width: columns of the terminal; None: a file, in which a text stays on one line.
    """
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    fit = _how_many_fit(widths, width)
    lines = _wrapped(table.title, width)
    if table.rows:
        lines += _side_by_side(table.columns[:fit], widths)
    for row in table.rows:
        lines += _side_by_side(row[:fit], widths)
        for name, text in zip(table.columns[fit:], row[fit:], strict=True):
            lines += _wrapped(f"{name}: {text}", width, _INDENT) if text else []
    return [line.rstrip() for line in [*lines, *_wrapped(table.caption, width)]]


def _how_many_fit(widths: Sequence[int], width: int | None) -> int:
    """Return the number of first columns that fit side by side; one always does."""
    fit = len(widths)
    while width and fit > 1 and sum(widths[:fit]) + len(_GAP) * (fit - 1) > width:
        fit -= 1
    return fit


def _side_by_side(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return a row, in which a cell can have several lines."""
    texts = [cell.split("\n") for cell in cells]
    lines = itertools.zip_longest(*texts, fillvalue="")
    return [_GAP.join(map(str.ljust, line, widths)) for line in lines]


def _wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text as lines. A word that is longer than a line is not cut: it can be copied."""
    lines: list[str] = []
    for part in text.splitlines():
        lines += textwrap.wrap(
            part,
            width or len(indent) + len(part) + 1,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
