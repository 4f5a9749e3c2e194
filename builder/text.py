"""Numbers and foreign text for people."""

from __future__ import annotations


def human_bytes(n: float) -> str:
    """A number of bytes with a unit: ``1536`` as ``1.5 kB``. The units are powers of 1000."""
    if abs(n) < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB"):
        n /= 1000
        if abs(n) < 1000:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} GB"


def one_line(text: str) -> str:
    """Foreign text as one line: white space as single spaces, other control characters as escapes."""
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
