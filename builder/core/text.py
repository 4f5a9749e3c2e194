"""Text for people: tables, numbers with units, and characters that a terminal would obey. Also the
words of command lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Control characters (C0, DEL, C1), separators of lines and paragraphs, and marks that change the direction
#: of a text: a terminal obeys them, and other programs see a new line. Also surrogates, the undecodable bytes
#: of file names: they cannot be written as UTF-8.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass
class Table:
    """A table for a terminal: columns, rows, and a line above and below them."""

    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    title: str = ""
    caption: str = ""


def visible(text: str) -> str:
    """Return the text with control characters as escapes (``\\x1b``); newlines and tabs stay."""
    return CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in "\n\t":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def human_bytes(n: float) -> str:
    """Return a number of bytes with a unit, a power of 1000: ``1536`` as ``1.5 kB``."""
    if abs(n) < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB"):
        n /= 1000
        if abs(n) < 1000:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} GB"


_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) ?([kKMGT]?)(i?)B?")


def parse_bytes(text: str) -> int | None:
    """Return the bytes of ``50G``, ``50 GB`` (powers of 1000), ``50GiB`` (of 1024) or ``500``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        return None
    unit = (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * unit)


def human_seconds(seconds: float) -> str:
    """Return a duration with units: ``75`` as ``1 min 15 s``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return names as text: of more than ``most``, the first ones and how many more there are."""
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def option_words(options: Mapping[str, object]) -> list[str]:
    """Return the options that have a value as words of a command line; True is a flag's."""
    words = []
    for name, value in options.items():
        if value:
            words += [name] if value is True else [name, str(value)]
    return words


def one_line(text: str) -> str:
    """Return foreign text as one line, with control characters as escapes."""
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
