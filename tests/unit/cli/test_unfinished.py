"""A solved lock whose base fails: the next command continues from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import project
from builder.errors import ImageError
from builder.lock.file import read_lock
from builder.model import LockedBase
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that were solved."""
    names: list[str] = []
    choose = project.choose_solver

    def counted(recipe: Any, solver: Any) -> Callable[..., Any]:
        names.append(recipe.name)
        return choose(recipe, solver)

    monkeypatch.setattr(project, "choose_solver", counted)
    return names


@pytest.fixture
def unfinished(copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a target whose ``debian:`` base cannot be made."""

    def refuse(*args: object) -> LockedBase:
        raise ImageError("debian:bookworm: mmdebstrap failed", "repair it")

    monkeypatch.setattr(project, "resolve_recipe_base", refuse)
    edit(copy.recipe, base="debian:bookworm")
    copy.lock.unlink()
    return copy.lock.with_name(f"{copy.lock.name}.unfinished")


def works(*args: object) -> LockedBase:
    return LockedBase("debian:bookworm", "sha256:" + "a" * 64)


def test_continued(
    do: Cli, copy: TinyProject, unfinished: Path, solves: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is solved once, whatever command comes next, and the lock is that of one uninterrupted command."""
    for command in (["build", "tiny"], ["lock", "tiny"], ["build", "tiny"]):
        result = do(*command)
        assert result.code == 8 and solves == ["tiny"]
        assert f"repair it; {unfinished} has the solved packages" in " ".join(result.err.split())
    assert not copy.lock.exists() and do("lock", "--check").code == 4, "nobody takes it for a lock"

    monkeypatch.setattr(project, "resolve_recipe_base", works)
    result = do("lock", "tiny")
    assert result.code == 0 and solves == ["tiny"] and not unfinished.exists()
    assert f"continuing from {unfinished}" in " ".join(result.err.split())
    text = copy.lock.read_bytes()
    copy.lock.unlink()
    assert do("lock", "tiny").code == 0 and solves == ["tiny"] * 2 and copy.lock.read_bytes() == text


@pytest.mark.parametrize("damaged", [False, True])
def test_solved_again(do: Cli, copy: TinyProject, unfinished: Path, solves: list[str], damaged: bool) -> None:
    """Other packages, another date or a damaged file: it is solved again."""
    do("lock", "tiny")
    if damaged:
        unfinished.write_bytes(unfinished.read_bytes()[:-100])
        do("lock", "tiny")
    else:
        do("lock", "tiny", "--exclude-newer", "2026-01-01")
        edit(copy.environment, dependencies=["python=3.11"])
        do("lock", "tiny", "--exclude-newer", "2026-01-01")
    assert len(solves) == (2 if damaged else 3)


def test_earlier_lock_stays(do: Cli, copy: TinyProject, unfinished: Path) -> None:
    """A command that fails leaves the lock that is there."""
    before = b"# whatever\n"
    copy.lock.write_bytes(before)
    assert do("lock", "tiny").code == 8 and copy.lock.read_bytes() == before
    assert read_lock(unfinished).base is None
