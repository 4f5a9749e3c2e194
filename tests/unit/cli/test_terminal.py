"""Text and tables in a terminal and in a file: colours, widths, words."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from builder.cli.terminal import fitted
from builder.core.text import Table
from builder.lock.config.recipe import load_recipe, recipe_files
from tests.support.terminal import Shown, in_terminal

ROOT = Path(__file__).parents[3]
DIGEST = "sha256:" + "0123456789abcdef" * 4
PATH = "/lustre/orion/proj-shared/" + "climate-model-ensemble/" * 3 + "cache"
#: What commands print, with an ``Output``.
PRINTED = f"""
from builder.cli.output import Output
from builder.core.text import Table

output = Output()
rows = [("ok", "cache", "{PATH}: 1 TB free"), ("missing", "GPU", "no driver"), ("bad", "disk", "full")]
output.table(Table(("", "what", "found"), rows))
output.text("cpu {DIGEST}")
output.text("  oci:{PATH}:cpu")
output.warn("[red]the lock[/red] is old :warning:")
output.error("{PATH}/recipes/cpu.yaml: no channel has the-package-with-hyphens for linux-64", "see it")
"""


def show(columns: int = 80, **env: str) -> Shown:
    return in_terminal([sys.executable, "-c", PRINTED], columns=columns, env=env)


def test_colours() -> None:
    """Verdicts have the colours of traffic lights, digests and paths of results are dim; words stay."""
    shown = show(200)
    for colour, word in ((32, "ok"), (33, "missing"), (31, "bad"), (33, "warning"), (31, "error")):
        assert f"\x1b[{colour}m{word}\x1b[0m" in shown.raw
    for dim in (DIGEST, PATH, f"oci:{PATH}:cpu"):
        assert f"\x1b[2m{dim}\x1b[0m" in shown.raw
    assert f"\x1b[0m: {PATH}/recipes" in shown.raw, "the file of an error is not dim"
    assert "warning: [red]the lock[/red] is old :warning:\n" in shown.text
    codes = set(re.findall(r"\x1b\[([^m]*)m", shown.raw))
    assert codes == {"0", "2", "31", "32", "33"}, "readable on light and dark backgrounds"


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours(env: dict[str, str]) -> None:
    """NO_COLOR and TERM=dumb are obeyed; an empty NO_COLOR is none (no-color.org)."""
    shown = show(**env)
    assert "\x1b" not in shown.raw and "warning: [red]" in shown.raw
    assert show(NO_COLOR="").raw.count("\x1b")


def test_pipe(tmp_path: Path) -> None:
    """What is redirected has no colours, while the other stream is a terminal."""
    (tmp_path / "printed.py").write_text(PRINTED)
    shown = in_terminal(["sh", "-c", f"{sys.executable} printed.py >out"], cwd=tmp_path)
    assert "\x1b" not in (tmp_path / "out").read_text() and "\x1b[31merror" in shown.raw


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_words(columns: int) -> None:
    """No line but a single long word is cut by the terminal, and none is broken at a hyphen."""
    shown = show(columns)
    for line in shown.text.splitlines():
        assert len(line) <= columns or len(line.split()) == 1
    words = shown.text.split()
    assert "the-package-with-hyphens" in words and f"{PATH}/recipes/cpu.yaml:" in words
    assert f"{PATH}:" in words and DIGEST in words and f"oci:{PATH}:cpu" in words


@pytest.mark.parametrize("width", [70, 80, 100])
def test_targets(width: int) -> None:
    """A table of this project's targets has its header, a line that begins with each name, all words."""
    names = list(recipe_files(ROOT))
    table = Table(("target", "GPU", "locked", "description"))
    for recipe in (load_recipe(name, ROOT) for name in names):
        table.rows.append((recipe.name, recipe.gpu.vendor, "no", recipe.description))
    lines = fitted(table, width)
    assert lines[0].split() == ["target", "GPU", "locked", "description"]
    assert [line.split()[0] for line in lines[1:] if line[:1] != " "] == names
    assert all(len(line) <= width for line in lines)
    words = " ".join(lines).split()
    assert all(word in words for row in table.rows for cell in row for word in cell.split())


def test_file() -> None:
    """A table in a file has no blanks at the ends of lines, and is at most 120 columns wide."""
    rows = [("pass", "a", "short\nbelow"), ("warn", "b", "long " * 60 + "end"), ("ok", "c", "/x" * 100)]
    lines = fitted(Table(("", "name", "result"), rows, title="all is well", caption="the end"), 120)
    assert lines[:5] == [
        "all is well",
        "      name  result",
        "pass  a     short",
        "            below",
        "warn  b     " + "long " * 20 + "long",
    ]
    assert lines[-2:] == ["ok    c     " + "/x" * 100, "the end"]
    assert [line for line in lines if len(line) > 120] == [lines[-2]], "a path is never cut"
    assert fitted(Table(("name", "text"), title="nothing"), 80) == ["nothing"]
    assert fitted(Table(("name", "text")), 80) == []


def test_narrow() -> None:
    """The last column gets some columns, however long its words are, and the first ones keep theirs."""
    rows = [("ok", "a name", "few words " * 20 + "x" * 90)]
    lines = fitted(Table(("", "what", "found"), rows), 60)
    assert lines[:2] == ["    what    found", "ok  a name  " + "few words " * 4 + "few"]
    assert lines[-1].strip() == "x" * 90
    rows = [("numpy", "1.2", "1.3"), ("base image", "x" * 60, "y")]
    lines = fitted(Table(("package", "before", "after"), rows), 60)
    assert lines[1].split() == ["numpy", "1.2", "1.3"] and len(lines[1]) < 60
    assert lines[2] == f"base image  {'x' * 60}  y"


def test_foreign_text() -> None:
    """Control characters are shown before widths are measured."""
    lines = fitted(Table(("a", "b"), [("\x1b[2J\u202e", "[bold]x[/bold] :smile:")]), 80)
    assert lines == ["a              b", "\\x1b[2J\\u202e  [bold]x[/bold] :smile:"]


def test_environment_of_columns() -> None:
    """COLUMNS wins over the terminal's size."""
    shown = show(40, COLUMNS="300")
    assert max(map(len, shown.text.splitlines())) > 100
    assert "COLUMNS" not in os.environ or os.environ["COLUMNS"]
