"""The tree of exceptions and its exit codes, as the module, the command line and the docs show them."""

from __future__ import annotations

import re
from pathlib import Path

from builder.core import errors
from builder.core.errors import BuilderError, exit_codes

ROOT = Path(__file__).parents[3]


def test_tree_in_the_docstring() -> None:
    """The tree at the top of the module names each class with its exit code."""
    drawn = dict(re.findall(r"(\w+) +(\d+)", errors.__doc__ or ""))
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, BuilderError)]
    assert drawn.items() >= {k.__name__: str(k.exit_code) for k in kinds}.items()
    assert {k.exit_code for k in kinds} <= exit_codes().keys()


def test_table_in_the_docs() -> None:
    """docs/cli.md lists the exit codes with the same words."""
    table = re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "docs" / "cli.md").read_text(), re.M)
    assert {int(code): meaning for code, meaning in table} == exit_codes()


def test_hint_in_the_text() -> None:
    assert str(BuilderError("what", "how")) == "what\n  hint: how" and str(BuilderError("what")) == "what"
