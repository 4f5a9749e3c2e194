"""Numbers and foreign text for people."""

from __future__ import annotations

import pytest

from builder.core.text import human_bytes, one_line, parse_bytes, visible


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1536, "1.5 kB"),
        (2_500_000, "2.5 MB"),
        (-1536, "-1.5 kB"),
        (7 * 10**9, "7.0 GB"),
        (5 * 10**12, "5000.0 GB"),
    ],
)
def test_human_bytes(n: float, text: str) -> None:
    assert human_bytes(n) == text


def test_one_line() -> None:
    assert one_line("a\n\tb \x1b[2Jc\udcff caf\u00e9") == "a b \\x1b[2Jc\\udcff caf\u00e9"


def test_visible() -> None:
    """Characters that a terminal obeys become escapes; newlines and tabs stay."""
    assert visible("a\x1b]0;title\x07\n\tb\x9b2J\x7f\r") == "a\\x1b]0;title\\x07\n\tb\\x9b2J\\x7f\\x0d"
    assert visible("\u202egnp.exe\u2066 ä\u2028") == "\\u202egnp.exe\\u2066 ä\\u2028"
    assert visible("caf\udce9") == "caf\\udce9"  # the file name b"caf\xe9"


def test_parse_bytes() -> None:
    sizes = {
        "500": 500,
        "50G": 50 * 10**9,
        "50 GB": 50 * 10**9,
        "50GiB": 50 << 30,
        "1.5k": 1500,
        "2Ti": 2 << 40,
    }
    assert {text: parse_bytes(text) for text in sizes} == sizes
    assert [parse_bytes(text) for text in ("", "G", "1iB", "-1", "1,5G", "1EB")] == [None] * 6
