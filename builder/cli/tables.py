"""Fits tables into the width of a terminal, without cutting a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

#: The width of lines that are not wrapped.
LONGEST_LINE = 10_000
#: Columns that a longer text needs beside others; with fewer it moves to a line of its own.
_PROSE = 32
_GAP = 2
_INDENT = 4


@dataclass(frozen=True, slots=True)
class _Column:
    header: Text
    cells: Sequence[Text]

    @property
    def width(self) -> int:
        """Of the longest line."""
        lines = [line for cell in (self.header, *self.cells) for line in cell.split("\n")]
        return max(line.cell_len for line in lines)

    def least(self, label: int) -> int:
        """Columns for the longest word after a label of some columns, and enough for a text."""
        words = [Text(word).cell_len for cell in self.cells for word in cell.plain.split()]
        return max([min(_PROSE, self.width), *(label + word for word in words)])


def fitted(table: Table, console: Console, *, wrap: bool = True) -> RenderableType:
    """A table that is not wider than the console, unless a single word is.

    A table that fits has a line for each row. Otherwise the last columns share one, in which texts are
    wrapped at words. If too little room is left for that, they are below the first ones, with their headers::

        target  groups  GPU
        lumi-g  ml gui  amd gfx90a
            base: docker://docker.io/library/debian:bookworm
            description: LUMI-G, AMD MI250X

    Without ``wrap`` a text stays on one line, as it is best for a file that is searched.
    """
    columns = [_column(column.header, list(column.cells), console) for column in table.columns]
    width = console.width
    line = width if wrap else LONGEST_LINE

    def texts(text: object) -> list[Text]:
        return _wrapped(console.render_str(text), line, console) if isinstance(text, str) else []

    title, caption = texts(table.title), texts(table.caption)
    if not any(column.cells for column in columns) or _sum(columns) <= width:
        return Group(*title, _grid(columns), *caption)
    for count in range(len(columns) - 1, 0, -1):
        head, body = columns[:count], columns[count:]
        room = width - _sum(head) - _GAP
        labels = [0, *(column.header.cell_len + 2 for column in body[1:])]
        needed = max(column.least(label) for column, label in zip(body, labels, strict=True))
        if needed <= room and body[0].width > _PROSE:
            return Group(*title, _grid([*head, _shared(body)], room if wrap else None), *caption)
    return Group(*title, *_below(columns, line, console), *caption)


def _wrapped(text: Text, width: int, console: Console, indent: int = 0) -> list[Text]:
    """A text as lines. A word that is longer than a line is not cut: the terminal breaks it, and it can be
    copied.
    """
    lines: list[Text] = []
    for part in text.split("\n"):
        longest = max((Text(word).cell_len for word in part.plain.split()), default=0)
        lines += part.wrap(console, max(width - indent, longest))
    return [Text.assemble(" " * indent, line, no_wrap=True) for line in lines]


def _column(header: RenderableType, cells: Sequence[RenderableType], console: Console) -> _Column:
    def text(cell: RenderableType) -> Text:
        return cell if isinstance(cell, Text) else console.render_str(str(cell))

    return _Column(text(header), [text(cell) for cell in cells])


def _sum(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _grid(columns: Sequence[_Column], last: int | None = None) -> Table:
    """Columns side by side; ``last``: the width of the last one, whose texts are wrapped."""
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for number, column in enumerate(columns, 1):
        wraps = last is not None and number == len(columns)
        grid.add_column(
            column.header,
            no_wrap=not wraps,
            overflow="fold" if wraps else "ignore",
            width=last if wraps else column.width,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(*row)
    return grid


def _shared(columns: Sequence[_Column]) -> _Column:
    """Columns as one: the first one's text, and the others below it with their headers."""
    first, *others = columns
    cells = []
    for number, cell in enumerate(first.cells):
        more = [_labelled(column, number) for column in others if column.cells[number].plain]
        cells.append(Text("\n").join([*([cell] if cell.plain or not more else []), *more]))
    return _Column(first.header, cells)


def _below(columns: Sequence[_Column], width: int, console: Console) -> list[Text]:
    """The first columns side by side, the others below each row."""
    count = max((n for n in range(1, len(columns)) if _sum(columns[:n]) <= console.width), default=1)
    head, body = columns[:count], columns[count:]
    widths = [column.width for column in head]
    lines = [_line([column.header for column in head], widths, "bold")]
    for number in range(len(head[0].cells)):
        lines.append(_line([column.cells[number] for column in head], widths))
        for column in body:
            if column.cells[number].plain:
                lines += _wrapped(_labelled(column, number), width, console, _INDENT)
    return lines


def _line(cells: Sequence[Text], widths: Sequence[int], style: str = "") -> Text:
    line = Text(style=style, no_wrap=True, overflow="ignore")
    for cell, width in zip(cells, widths, strict=True):
        line.append_text(cell)
        line.append(" " * (width - cell.cell_len + _GAP))
    line.rstrip()
    return line


def _labelled(column: _Column, number: int) -> Text:
    return Text.assemble((f"{column.header.plain}: ", "dim"), column.cells[number])
