"""No module and no function of the package grows beyond what a reader takes in at once (docs/style.md)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE_LINES = 500
FUNCTION_LINES = 60


def test_modules_and_functions_are_short() -> None:
    long = []
    for path in sorted((ROOT / "builder").rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(ROOT)
        if (lines := len(text.splitlines())) >= MODULE_LINES:
            long.append(f"{name}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
                continue
            if (lines := node.end_lineno - node.lineno + 1) >= FUNCTION_LINES:
                long.append(f"{name}:{node.lineno} {node.name}: {lines} lines")
    assert not long, "\n".join(long)
