"""The packages that the code of a project imports, for a project without a list of them."""

from __future__ import annotations

import ast
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from builder.lock.names import known_names

#: Files that are read, and bytes of each.
_MOST_FILES = 1000
_MOST_BYTES = 1 << 20


def imported_packages(root: Path, code: list[str]) -> list[str]:
    """Return the names on PyPI of the packages that code imports.

    Nothing is run: the files are parsed. Most packages have the name of their module;
    names.yaml has others. Files that are no Python of this version are skipped.

    Args:
        root: the project folder.
        code: the project's Python files and packages, relative to it.
    """
    own = {Path(name).stem for name in code} | {path.name for path in root.glob("*/")}
    files = islice(_files(root, code), _MOST_FILES)
    names = {name for path in files for name in imported_modules(path)}
    foreign = names - own - sys.stdlib_module_names
    meant = known_names("meant_on_pypi")
    return sorted({meant.get(name.lower(), name) for name in foreign})


def _files(root: Path, code: list[str]) -> Iterator[Path]:
    for name in code:
        path = root / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the topmost module of each import of a Python file; nothing for other files."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
