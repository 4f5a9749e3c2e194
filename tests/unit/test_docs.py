"""Tests and files that the pages name exist."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*.md"))]


@cache
def functions(path: Path) -> set[str]:
    """Functions and classes of a module."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests(page: Path) -> None:
    """``tests/FILE.py::NAME`` is a function of that file."""
    for file, name in re.findall(r"(?<![\w/])(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text()):
        assert (ROOT / file).is_file(), file
        assert not name or name in functions(ROOT / file), f"{file}::{name}"


def test_tests_of_findings() -> None:
    """docs/security.md writes ``ROOM/test_MODULE::NAME`` for tests below tests/unit."""
    table = (ROOT / "docs/security.md").read_text().split("\n## The review's findings\n")[1]
    named = re.findall(r"`((?:\w+/)?test_\w+)(?:::(\w+))?`", table)
    assert len(named) > 50
    for module, name in named:
        folder = "tests" if module.startswith("integration/") else "tests/unit"
        file = ROOT / folder / f"{module}.py"
        assert file.is_file(), module
        assert not name or name in functions(file), f"{module}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """Links between pages, and to their sections."""
    for target, section in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if section and file.suffix == ".md":
            assert section in anchors(file), f"{target}#{section}"


def test_address() -> None:
    """Pages name the repository's address, ``[project.urls]`` of pyproject.toml; while it is not set: URL."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    address = urls.get("Repository", "URL")
    named = {
        page.relative_to(ROOT).as_posix(): re.findall(r"git clone (\S+) builder-clone", page.read_text())
        for page in PAGES
    }
    wrong = {page: found for page, found in named.items() if set(found) - {address}}
    assert not wrong, f"pyproject.toml says {address}"
    assert named["README.md"]


def test_readme_is_short() -> None:
    """At most 700 words, as a reader sees them: without addresses of links and marks of tests."""
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(re.findall(r"\S*\w\S*", text)) <= 700


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
