"""The table of registries that lack a feature, in docs/registries.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs/registries.md"


def test_each_row_has_its_test() -> None:
    """The last column names a test of this folder."""
    table = PAGE.read_text().partition("| if the registry |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        found = re.search(r"\| `(test_\w+\.py)::(test_\w+)` \|$", row)
        assert found, row
        text = (Path(__file__).parent / found[1]).read_text()
        assert f"def {found[2]}(" in text, row
