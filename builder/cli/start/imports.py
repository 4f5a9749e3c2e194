"""The packages that the code of a project imports, for a project without a list of them."""

from __future__ import annotations

import ast
import contextlib
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from builder.core.text import human_bytes
from builder.lock.names import known_names

#: Bytes of a file that is read. A parser may take 500 times as much memory, and a second.
_MOST_BYTES = 1 << 20
#: Bytes of all files that are read; each counts for 4 KiB more.
MAX_CODE = 8 << 20


def imported_packages(root: Path, code: list[str]) -> list[str]:
    """Return the names on PyPI of the packages that code imports.

    Nothing is run: the files are parsed. Most packages have the name of their module;
    names.yaml has others. Files that are no Python of this version are skipped.

    Args:
        root: the project folder.
        code: the project's Python files and packages, relative to it.
    """
    own = {Path(name).stem for name in code} | {path.name for path in root.glob("*/")}
    foreign = set(imported_modules(_files(root, code))) - own - sys.stdlib_module_names
    meant = known_names("meant_on_pypi")
    return sorted({meant.get(name.lower(), name) for name in foreign})


def _files(root: Path, code: list[str]) -> Iterator[Path]:
    for name in code:
        path = root / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def imported_modules(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the topmost module of each import of Python files; nothing for other files.

    Reads :data:`MAX_CODE` bytes of code, and says in a line on stderr that it ends there.
    """
    left = MAX_CODE
    for path in paths:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            continue
        left -= found.st_size + (4 << 10)
        if left < 0:
            click.echo(f"imports are those of the first {human_bytes(MAX_CODE)} of code", err=True)
            return
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            yield from _imports(ast.parse(path.read_bytes()))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
