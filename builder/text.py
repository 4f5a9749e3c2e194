"""Numbers as people read them."""

from __future__ import annotations


def human_bytes(n: float) -> str:
    """``1536`` as ``1.5 kB``; powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
