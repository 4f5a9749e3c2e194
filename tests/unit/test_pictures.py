"""What ``make pictures`` shows of a terminal, and the text that tests compare."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from tests.support.docsite import ROOT


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(ROOT / "scripts/docs")
    yield {name: importlib.import_module(name) for name in ("screen", "pictures")}


def shown(scripts: dict[str, Any], text: str, columns: int = 80) -> list[str]:
    screen = scripts["screen"].Screen(columns)
    screen.feed(text)
    return list(screen.lines())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("solving: 1 s\r\x1b[Ksolving: 2 s\r\x1b[Ksolved\r\n", ["solved"]),
        ("one\r\ntwo\r\n\x1b[1A\x1b[2K\x1b[1A\x1b[2Kthree\r\n", ["three"]),
        ("one\r\ntwo\r\nthree\x1b[2A\r\x1b[J1\r\n", ["1"]),
        ("a\x1b[3Cb\x1b[2Gc\x1b[2Dd", ["dc  b"]),
        ("keep\r\x1b[2C\x1b[1K", ["   p"]),
        ("\x1b]8;;file:///x\x1b\\link\x1b]8;;\x07\x1b[?25l", ["link"]),
        ("\x1b[1;32mok\x1b[0m no", ["\x1b[1;32mo\x1b[0m\x1b[1;32mk\x1b[0m no"]),
    ],
)
def test_screen(scripts: dict[str, ModuleType], text: str, lines: list[str]) -> None:
    assert shown(scripts, text) == lines


def test_long_lines_stay_whole(scripts: dict[str, ModuleType]) -> None:
    """A terminal continues them in the next row, where a program may erase a part of them."""
    assert shown(scripts, "abcdefgh\r\nij", columns=4) == ["abcdefgh", "ij"]
    assert shown(scripts, "abcdefgh\r\x1b[Kij", columns=4) == ["abcdij"]


def test_progress_of_rich_is_gone(scripts: dict[str, ModuleType]) -> None:
    """Whatever draws transient progress, a table of several lines too."""
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Progress(console=console, transient=True) as progress:
        for name in ("layers", "packages"):
            progress.advance(progress.add_task(name, total=10), 5)
        progress.refresh()
        console.print("a result")
    assert isinstance(console.file, io.StringIO)
    assert "packages" in console.file.getvalue()
    assert shown(scripts, console.file.getvalue().replace("\n", "\r\n")) == ["a result"]


def test_words_without_numbers(scripts: dict[str, ModuleType]) -> None:
    """Amounts, times and digests differ from run to run; another word is another text."""

    def words(*lines: str) -> str:
        rows = (f'<text class="x" x="0" y="{20 * i}">{line}</text>' for i, line in enumerate(lines))
        return str(scripts["pictures"].words("".join(rows)))

    first = words("19 layers, 117.9 MB, built in 1 min 2 s", "at sha256:6d5c", "ab12", "Docker Hub is silent")
    assert first == words("7 layers, 98 kB, built in 0.6 s", "at sha256:ffff", "0000")
    assert first != words("7 layers, 98 kB, made in 0.6 s", "at sha256:ffff", "0000")


def test_picture_has_no_progress(scripts: dict[str, ModuleType]) -> None:
    text = scripts["pictures"].words((ROOT / "docs/pictures/first-image.svg").read_text())
    assert text.count("$ builder ") == 5
    assert re.findall(r".*(?:N %|N left).*", text) == []
