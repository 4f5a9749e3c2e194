"""Lays out text and tables for a terminal or a file, and colours what they say."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from typing import TextIO

import click

from builder.core.text import Table, visible

from .live import is_drawn

#: Characters of a line of a table in a file, and how many a column with long words gets at least.
FILE_WIDTH = 120
_LEAST = 30
_GAP = "  "
#: Verdicts by colour: cells of tables, beginnings of lines, and what follows a name.
_VERDICTS = re.compile(
    r"""(?:^|(?<=[ ]{2})|(?<=:[ ]))(?:
      (?P<green>ok|pass|built|fresh|faster)
    | (?P<yellow>warn|warning|missing|stale|unsteady)
    | (?P<red>bad|fail|failed|error|broken|slower)
    )(?=$|:|[ ]{2}|[ ]in[ ]\d)""",
    re.MULTILINE | re.VERBOSE,
)
#: What a result names besides: digests, and absolute paths.
_DETAILS = re.compile(r"sha256:[0-9a-f]{12,64}|(?<![^ (])(?:oci:)?/\S+/\S*[^\s:,;)]")


def width_of(stream: TextIO) -> int:
    """Return the columns of a terminal; 0: it is none, or does not say."""
    if not stream.isatty():
        return 0
    own = os.get_terminal_size(stream.fileno()).columns
    return shutil.get_terminal_size((own, 0)).columns  # of COLUMNS or stdout, if they say


def laid_out(text: str, stream: TextIO) -> str:
    """Return a text as a terminal shows it: no word is cut, verdicts have colours, unless it takes
    none; of a result the details are dim.
    """
    if width := width_of(stream):
        text = "\n".join(wrapped(text, width))
    if os.environ.get("NO_COLOR") or not is_drawn(stream):
        return text
    text = _VERDICTS.sub(lambda found: click.style(found[0], fg=found.lastgroup), text)
    if stream is sys.stdout:
        text = _DETAILS.sub(lambda found: click.style(found[0], dim=True), text)
    return text


def fitted(table: Table, width: int) -> list[str]:
    """Return the lines of a table that is not wider than ``width``, unless single words are.

    Without rows these are its title and caption.
    """
    rows = [[visible(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = _widths(list(zip(*rows, strict=True)), width)
    lines = wrapped(table.title, width)
    for row in rows if table.rows else ():
        cells = [wrapped(cell, room) or [""] for cell, room in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            lines.append(_GAP.join(map(str.ljust, line, widths)).rstrip())
    return lines + wrapped(table.caption, width)


def _widths(columns: list[tuple[str, ...]], width: int) -> list[int]:
    """Return the widths of columns. The widest ones become narrower first, none narrower than its
    longest word. A word of more than :data:`_LEAST` sticks out where there is no room for it.
    """
    widths = [max(map(len, "\n".join(column).split("\n"))) for column in columns]
    words = [max(map(len, " ".join(column).split()), default=0) for column in columns]
    least = [min(longest, _LEAST) for longest in words]
    room = width - len(_GAP) * (len(widths) - 1)
    while sum(widths) > room and widths != least:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        widths[widest] -= 1
    return widths


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as lines. A word that is longer than ``width`` is not cut: it can be copied."""
    from textwrap import TextWrapper

    lines = []
    wrapper = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    for line in visible(text).splitlines():
        wrapper.subsequent_indent = line[: len(line) - len(line.lstrip())]
        lines += wrapper.wrap(line) or [""]
    return lines
