"""Floors and sizes: a room imports lower floors only (ARCHITECTURE.md), no module is part of an import cycle,
and modules and functions are short (docs/development.md).

Lazy imports (inside functions) and imports for type checking count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE_LINES = 500
FUNCTION_LINES = 60

#: From the ground up. A room is a folder below builder/ or a module directly in it. Rooms of one floor do not
#: import each other.
FLOORS = (
    ("bench", "errors", "interrupts", "model", "progress", "redact", "tarheaders", "text"),
    ("git", "parallel", "settings", "version"),
    ("config", "store"),
    ("oci",),
    ("net", "qemu"),
    ("layers", "registry", "trees"),
    ("fetch", "lock", "sif"),
    ("bases", "sources"),
    ("image",),
    ("run",),
    ("doctor", "steps"),
    ("bytecode",),
    ("engines", "site", "start"),
    ("smoke", "wheels"),
    ("locking",),
    ("project",),
    ("publishing",),
    ("launch",),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


@cache
def modules() -> dict[str, Path]:
    """All modules of the package by their dotted names."""
    found = {}
    for path in sorted((ROOT / "builder").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def nodes(module: str) -> list[ast.AST]:
    """All nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(modules()[module].read_text())))


@cache
def imports(module: str) -> list[tuple[str, int]]:
    """The modules of the package that one imports, with the line numbers."""
    return list(find_imports(module))


def find_imports(module: str) -> Iterator[tuple[str, int]]:
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [node.module])])
            full = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else base for name in full]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name in modules())


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_floors() -> None:
    """Each import leads to a lower floor or stays in its room.

    The package's ``__init__`` is the public face: it is on top.
    """
    upward = []
    for module, path in modules().items():
        for target, line in imports(module):
            here, there = room(module), room(target)
            if here in ("", there) or target == "builder":
                continue
            if FLOOR_OF[there] >= FLOOR_OF[here]:
                upward.append(f"{path.relative_to(ROOT)}:{line} imports upward: {target}")
    assert not upward, "\n".join(upward)


def test_every_room_has_a_floor() -> None:
    rooms = {room(module) for module in modules()} - {""}
    assert rooms - FLOOR_OF.keys() == set(), "name the floor of a new room here and in ARCHITECTURE.md"


def test_no_cycles() -> None:
    graph = {module: {target for target, _ in imports(module) if target != module} for module in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError("import cycle: " + " -> ".join(error.args[1])) from None


def test_modules_and_functions_are_short() -> None:
    long = []
    for module, path in modules().items():
        name = path.relative_to(ROOT)
        if (lines := len(path.read_text().splitlines())) >= MODULE_LINES:
            long.append(f"{name}: {lines} lines")
        for node in nodes(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
                continue
            if (lines := node.end_lineno - node.lineno + 1) >= FUNCTION_LINES:
                long.append(f"{name}:{node.lineno} {node.name}: {lines} lines")
    assert not long, "\n".join(long)
