"""Houses, sizes and names: a house imports only houses below it (ARCHITECTURE.md), no room and no module is
part of an import circle, modules and functions are short and simple, and each class has one name
(docs/development.md).

Lazy imports (inside functions) and imports for type checking count too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES = 500
FUNCTION_LINES = 60

#: The houses from the top down, as ARCHITECTURE.md draws them: the folders of builder/.
_PICTURE = (ROOT / "ARCHITECTURE.md").read_text().partition("\n##")[0]
HOUSES = re.findall(r"^    (\w+)/ {2,}", _PICTURE, re.M)


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


def house(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def room(module: str) -> str:
    """A folder of a house, or a module directly in it."""
    return ".".join(module.split(".")[:3])


def test_houses() -> None:
    """The folders are the houses of ARCHITECTURE.md, and nothing else is beside them."""
    found = {path.name for path in (ROOT / "builder").iterdir() if not path.name.startswith(".")}
    modules = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}
    assert found - {"__pycache__"} == {*HOUSES, *modules}


def test_imports_lead_down() -> None:
    """Each import leads to a lower house or stays in its own.

    The package's ``__init__`` is the public face: it is on top.
    """
    upward = []
    for module, path in modules().items():
        here = house(module)
        for target, line in imports(module):
            there = house(target)
            if here not in ("", "__main__", there) and there and HOUSES.index(there) < HOUSES.index(here):
                upward.append(f"{path.relative_to(ROOT)}:{line} imports upward: {target}")
    assert not upward, "\n".join(upward)


def test_relative_imports() -> None:
    """A module of the same folder is imported relatively, so a full name leads out of it."""
    wrong = []
    for module, path in modules().items():
        folder = ".".join(path.relative_to(ROOT).parent.parts)
        for node in nodes(module):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").rpartition(".")[0] == folder != "builder"
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.module}")
    assert not wrong, "\n".join(wrong)


def test_benchmark_stands_alone() -> None:
    """It is in every image, without builder."""
    others = {target for module in modules() if house(module) == "bench" for target, _ in imports(module)}
    assert {target for target in others if house(target) != "bench"} <= {"builder"}


@pytest.mark.parametrize("part", [house, room, str], ids=["houses", "rooms", "modules"])
def test_no_circles(part: Callable[[str], str]) -> None:
    graph: dict[str, set[str]] = {}
    for module in modules():
        found = {part(target) for target, _ in imports(module)}
        graph.setdefault(part(module), set()).update(found - {part(module)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError("import circle: " + " -> ".join(error.args[1])) from None


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


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
STATEMENTS = ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler
BRANCHES = STATEMENTS | ast.IfExp | ast.comprehension | ast.match_case


#: How docstrings of functions begin.
VERBS = frozenset((ROOT / "tests/unit/verbs.txt").read_text().split())


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions, with the file and line of each."""
    for module, path in modules().items():
        for node in nodes(module):
            if isinstance(node, FUNCTIONS):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def complexity(function: ast.AST) -> int:
    """1, plus one for each branch, loop, handler and comprehension, and each ``and`` and ``or``.

    Functions in a function count by themselves. ruff's C901 counts no ``and``, ``or`` and ``x if y else z``.
    """
    count, todo = 1, list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if not isinstance(node, FUNCTIONS | ast.ClassDef):
            count += isinstance(node, BRANCHES) + (
                len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
            )
            todo.extend(ast.iter_child_nodes(node))
    return count


def test_functions_are_simple() -> None:
    """None is above 15; at most 2 % are above 10."""
    counts = {where: complexity(node) for where, node in functions()}
    above = sorted((count, where) for where, count in counts.items() if count > 10)
    assert [each for each in above if each[0] > 15] == []
    assert len(above) <= 0.02 * len(counts), "\n".join(map(str, above))


def test_few_parameters() -> None:
    """At most 15 functions have more than six; click's commands, in cli/, do not count."""
    many = [
        where
        for where, node in functions()
        if "/cli/" not in where
        and len([a for a in (*node.args.args, *node.args.kwonlyargs) if a.arg not in ("self", "cls")]) > 6
    ]
    assert len(many) <= 15, "\n".join(many)


def test_lines_are_short() -> None:
    """At most 1 % are longer than 100 columns."""
    lines = [line for path in modules().values() for line in path.read_text().splitlines()]
    wide = sum(len(line) > 100 for line in lines)
    assert wide <= 0.01 * len(lines), f"{wide} of {len(lines)}"


def test_one_name_for_each_class() -> None:
    """A name that two rooms share sends a reader to the imports."""
    found: dict[str, list[str]] = {}
    for module in modules():
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_module_names() -> None:
    """Not more than three modules share a name."""
    names = Counter(path.name for path in modules().values() if path.name != "__init__.py")
    assert {name: count for name, count in names.items() if count > 3} == {}


def test_docstrings_begin_with_a_verb() -> None:
    """Those of functions; a property is named by a noun."""
    wrong = []
    for where, node in functions():
        text = ast.get_docstring(node)
        is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        if (
            text
            and not is_property
            and not node.name.startswith("__")
            and text.split()[0].rstrip(":,.") not in VERBS
        ):
            wrong.append(f"{where}: {text.splitlines()[0]}")
    assert not wrong, "begin with a verb (tests/unit/verbs.txt has those in use):\n" + "\n".join(wrong)
