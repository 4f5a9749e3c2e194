"""The tables of a run, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import BEGIN, END, part_of, render, spread, write_page
from tests.unit.benchmarks.results import results


@pytest.mark.parametrize(
    "line",
    [
        "| docker, pip, cold | 180.00 s | 190.00 s | 200 MB (100) | 850.0 MB |",
        "| **builder**, cold | 21.00 s (20.00-22.00) | 30.00 s (30.00-30.00) | 200 MB (100) | 750.0 MB |",
        "| **builder** against docker, pip | 1/8.6 | 1/6.3 |",
        "| **builder**, bytecode: none against docker, uv | 1/15.0 | 1/17.9 |",
        "| **builder**, flat | 5.00 s | 5.00 s | 440.0 MB | 1/14.0 |",
        "| cold pull and start | docker | **builder** "
        "| 60.00 s | 30.00 s | 60.00 s | docker, pip | 0.75 | 0.75 |",
        "| 300 | 8.0 GB | 26.7 s | 40.0 s | 20.0 s | 40.0 s | 20.0 s |",
        "- conda: docker, micromamba: micromamba is not installed",
        "143 packages, 1,000 files, 1.0 GB of wheels, 2.0 GB unpacked.",
        "Both images contain the same 143 distributions, except for tzdata.",
    ],
)
def test_line(line: str) -> None:
    assert line in render(results()).splitlines()


def test_limit() -> None:
    """builder's CPU seconds are compared with the machine's limit."""
    text = (
        "The machine's limit: 6.00 CPU seconds. A cold build: 1.17 times that (**builder**, bytecode: none)"
    )
    assert text in render(results())


def test_columns() -> None:
    """Each row of a table has as many cells as its head."""
    tables = [block.splitlines() for block in render(results()).split("\n\n") if block.startswith("|")]
    assert len(tables) >= 8
    for rows in tables:
        assert len({row.count("|") for row in rows}) == 1, rows[0]


def test_unfinished() -> None:
    """A run that was interrupted after a workload can be rendered."""
    made = results()
    del made["size"], made["seconds"]["all"]
    assert "### Workload torch" in render(made)


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.00 s (1.00-3.00)"
    assert spread([3.0]) == "3.00 s"


def test_part_of() -> None:
    """A rival that is faster is not a fraction."""
    assert (part_of(4.0), part_of(0.5)) == ("1/4.0", "2.0")


def test_page(tmp_path: Path) -> None:
    """What is outside the markers stays."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page("new\n", page)
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="begin"):
        write_page("new\n", page)
