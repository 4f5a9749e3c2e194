"""docs/security.md names limits with their values."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "EiB": 1 << 60, "days": 86400}
#: A row of a table of limits: what is limited, a number with a unit, a constant.
ROWS = re.findall(r"^\| [^|]+ \| ([\d,]+)(?: (\w+|%))? \| `([\w.]+)` \|$", PAGE, re.MULTILINE)


def test_all_rows_are_compared() -> None:
    tables = PAGE.split("\n## Limits\n")[1].split("\n## ")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and "| constant |" not in line]
    assert len(rows) == len(ROWS) > 40


@pytest.mark.parametrize(("number", "unit", "name"), ROWS, ids=[name for *_, name in ROWS])
def test_limit(number: str, unit: str, name: str) -> None:
    """The constant has the value on the page. Of a list it is the length, of a pattern the longest text."""
    module, _, constant = name.rpartition(".")
    found = getattr(importlib.import_module(f"builder.{module}"), constant)
    value = int(number.replace(",", "")) * UNITS.get(unit, 1)
    if isinstance(found, re.Pattern):
        assert found.fullmatch("x" * value) and not found.fullmatch("x" * (value + 1))
    elif isinstance(found, str):
        assert found == f"{number}{unit}"
    else:
        assert value == (len(found) if isinstance(found, tuple) else found)
