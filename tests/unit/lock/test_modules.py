"""The list of imported modules in a lock: its form, its bounds, and how it stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import LockError
from builder.lock import modules
from builder.lock.file import read_lock, with_list_of, write_lock
from builder.lock.modules import MODULES, is_module_path, listed_modules, modules_text
from builder.model import Lock

LOCK = Lock((), ("linux-64",), custom={"builder.conda": "[]", "other": "two\nlines"})
PATHS = {"abc.py", "json/__init__.py", "site-packages/torch/nn/modules/conv.py", "site-packages/törch.py"}


def listing(text: str) -> Lock:
    return replace(LOCK, custom={**LOCK.custom, MODULES: text})


def test_text() -> None:
    """A line for each folder, whatever the order of the paths."""
    paths = ["site-packages/a/c.py", "b.py", "site-packages/a/b.py", "a.py", "a.py"]
    assert modules_text(paths) == ".: a b\nsite-packages/a: b c"


def test_round_trip(tmp_path: Path) -> None:
    """The file has the lines as they are, and nothing else of it changes."""
    path = tmp_path / "e.t.lock.yml"
    before = write_lock(LOCK, path)
    plain = path.read_text()
    made = write_lock(listing(modules_text(PATHS)), path)
    assert listed_modules(made) == PATHS and listed_modules(before) is None
    lines = path.read_text().splitlines()
    assert "      site-packages/torch/nn/modules: conv" in lines
    start = lines.index("    builder.modules: |-")
    assert "\n".join(lines[:start] + lines[start + 5 :]) + "\n" == plain
    assert made.custom["other"] == "two\nlines"
    first = path.read_bytes()
    assert write_lock(read_lock(path), path) == made and path.read_bytes() == first


@pytest.mark.parametrize(
    "text",
    ["", "../x: a", "/etc: a", "site-packages: ../a", "site-packages: a  b", ".: a\n\n.: b", "a/./b: c"]
    + [".: " + "x" * 2000, "site-packages:a", ".: .hidden"],
)
def test_damaged(text: str) -> None:
    with pytest.raises(LockError, match=r"builder\.modules is damaged.*\n.*builder lock --imports"):
        listed_modules(listing(text))


def test_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MAX_MODULES", 3)
    assert len(listed_modules(listing(".: a b c")) or ()) == 3
    with pytest.raises(LockError, match="more than 3 modules"):
        listed_modules(listing(".: a b c\nd: e"))


@pytest.mark.parametrize("path", ["a.pyc", "a/../b.py", "/a.py", "a b.py", "", ".py", "a\n.py", "a.so"])
def test_other_paths(path: str) -> None:
    assert not is_module_path(path)


def test_new_lock_keeps_the_list(tmp_path: Path) -> None:
    """A new solve has no list of its own. A damaged or missing file has none to keep."""
    path = tmp_path / "e.t.lock.yml"
    assert with_list_of(LOCK, path) == LOCK
    write_lock(listing(".: a"), path)
    assert with_list_of(LOCK, path) == listing(".: a")
    assert with_list_of(listing(".: b"), path) == listing(".: b")
    path.write_text("{")
    assert with_list_of(LOCK, path) == LOCK
