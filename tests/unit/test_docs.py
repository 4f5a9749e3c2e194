"""Tests and files that the pages name exist."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.support.doccommands import code_blocks

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """Links between pages, and to their sections."""
    for target, section in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if section and file.suffix == ".md":
            assert section in anchors(file), f"{target}#{section}"


def test_where_is_it() -> None:
    """The files that ARCHITECTURE.md names are there."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`(?:builder/)?((?:cli|deliver|build|lock|formats|core)/[\w/]+\.py)`", text)
    assert len(named) > 20 and not [name for name in named if not (ROOT / "builder" / name).is_file()]


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


def test_size() -> None:
    """At most 40 pages, and 5 on extending builder, with 45,000 words: a longer one takes another's place."""
    pages = sorted(ROOT.glob("docs/**/*.md"))
    assert len(pages) <= 45
    assert sum(len(page.read_text().split()) for page in pages) <= 45_000


def test_support_index() -> None:
    """tests/support/README.md has a line for each file and folder beside it."""
    folder = ROOT / "tests" / "support"
    there = {f"{path.name}/" if path.is_dir() else path.name for path in folder.glob("[!_.]*")}
    listed = re.findall(r"^\| `(\S+(?:\.py|\.c|/))` \|", (folder / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(there - {"README.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_fits(page: Path) -> None:
    """Lines of code blocks have at most 76 characters, so none is cut or wrapped at desktop width."""
    lines = [
        line for _, _, text, _ in code_blocks(page.read_text().splitlines()) for line in text.splitlines()
    ]
    assert [line for line in lines if len(line) > 76] == []


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
