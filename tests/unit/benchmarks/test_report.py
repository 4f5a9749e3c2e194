"""The tables of a run, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import BEGIN, END, render, write_page
from tests.unit.benchmarks.results import results


@pytest.mark.parametrize(
    "line",
    [
        "| torch | buildah, uv | 130.0 | 135.0 | 200 | 650.0 |  |  |",
        "| torch | **builder** | 21.0 | 30.0 | 200 | 750.0 | 1.0, 1.0, 1.0 | 0.25, 0.25 |",
        "| torch | docker, uv --compile-bytecode | 150.0 | 160.0 | 660.0 | 800.0 |",
        "| torch | **builder** | 2.0 | 2.0 | 10.0 | 1.0 |",
        "The machine's limit: torch 6.0 s, cuda 20.0 s.",
        "| torch | **builder**, flat | 5.0 | 5.0 | 440 |",
        "| cold pull and start | **builder** | 60.0 (80.0) |",
        "- conda: docker, micromamba: micromamba is not installed",
    ],
)
def test_line(line: str) -> None:
    assert line in render(results()).splitlines()


def test_columns() -> None:
    """Each row of a table has as many cells as its head."""
    tables = [block.splitlines() for block in render(results()).split("\n\n") if block.startswith("|")]
    assert len(tables) == 5
    for rows in tables:
        assert len({row.count("|") for row in rows}) == 1, rows[0]


def test_page(tmp_path: Path) -> None:
    """What is outside the markers stays."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page("new\n", page)
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="begin"):
        write_page("new\n", page)
