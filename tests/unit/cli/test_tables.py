"""Tables in a terminal of 80 columns, with the data of this project: nothing is wider, and no word is cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from builder.cli import cli, output, run
from builder.cli.output import Output, _Console
from builder.config.recipe import recipe_files

ROOT = Path(__file__).parents[3]
LONG = "sha256:" + "0" * 64

Shown = Callable[..., list[str]]


@pytest.fixture(params=[80, 60, 100])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    console = partial(_Console, force_terminal=True, color_system=None, width=width)
    monkeypatch.setattr(output, "_Console", console)


@pytest.fixture
def shown(terminal: None, width: int, capsys: pytest.CaptureFixture[str]) -> Iterator[Shown]:
    """Runs a command, or prints a table; returns the lines, none of which is too wide."""

    def show(*what: str | Table, code: int = 0) -> list[str]:
        capsys.readouterr()
        if isinstance(what[0], Table):
            for table in what:
                Output().table(table)
        else:
            assert run(cli, list(map(str, what))) == code
        lines = capsys.readouterr().out.splitlines()
        for line in lines:
            assert line == line.rstrip()
            words = line.split()
            assert len(line) <= width or max(map(len, words)) > width - 24, line
        return lines

    yield show


def test_targets(shown: Shown) -> None:
    """The names of all targets can be copied. The base is a line of ``targets show NAME``."""
    lines = shown("--project", str(ROOT), "targets")
    words = set(" ".join(lines).split())
    assert len(lines) < 4 * len(recipe_files(ROOT))
    for name in recipe_files(ROOT):
        assert name in words
        assert sum(line.startswith(f"{name} ") for line in lines) == 1


def test_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A log has no blanks at the ends of lines, and texts stay on one line."""
    table = Table("", "name", "result", box=None, title="all [red]is[/red] well", caption="the end")
    table.add_row("pass", "a", "short")
    table.add_row("warn", "b", "long " * 60 + "end")
    Output().table(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "all is well",
        "      name  result",
        "pass  a     short",
        "warn  b     " + "long " * 60 + "end",
        "the end",
    ]


def test_foreign_text(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Wide and foreign characters count as the terminal shows them; control characters are escaped."""
    table = Table("name", "text", box=None)
    table.add_row("\u6f22\u5b57", Text("a \x1b[2J " * 40))
    table.add_row("[bold]x[/bold]", "")
    Output().table(table)
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out and "\\x1b[2J" in out
    assert re.search(r"^\u6f22\u5b57  a ", out, re.MULTILINE) and re.search(r"^x$", out, re.MULTILINE)
