"""Tables in a terminal: nothing is wider, and no word is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.cli.tables import fitted
from builder.core.text import Table
from builder.lock.config.recipe import load_recipe, recipe_files

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_terminal(width: int) -> None:
    """Each target of this project has a line that begins with its name; long texts are below it."""
    names = list(recipe_files(ROOT))
    table = Table(("target", "GPU", "base", "description"))
    for recipe in (load_recipe(name, ROOT) for name in names):
        table.rows.append((recipe.name, recipe.gpu.vendor, recipe.base, recipe.description))
    lines = fitted(table, width)
    assert [line.split()[0] for line in lines[1:] if line[:1] != " "] == names
    assert all(len(line) <= width or len(line.split()) <= 2 for line in lines)
    words = " ".join(lines).split()
    assert all(word in words for row in table.rows for cell in row for word in cell.split())


def test_file() -> None:
    """A log has no blanks at the ends of lines, and texts stay on one line."""
    rows = [("pass", "a", "short\nbelow"), ("warn", "b", "long " * 60 + "end")]
    assert fitted(Table(("", "name", "result"), rows, title="all is well", caption="the end"), None) == [
        "all is well",
        "      name  result",
        "pass  a     short",
        "            below",
        "warn  b     " + "long " * 60 + "end",
        "the end",
    ]
    assert fitted(Table(("name", "text"), title="nothing"), 80) == ["nothing"]
    assert fitted(Table(("name", "text")), 80) == []
