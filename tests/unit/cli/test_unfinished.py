"""A solved lock whose base fails: the next command continues from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.core.model import Lock, LockedBase
from builder.core.stages import Solver
from builder.deliver import locking
from builder.lock.config.recipe import Recipe
from builder.lock.request import LockRequest
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that were solved."""
    names: list[str] = []
    choose = locking.choose_solver

    def counted(recipe: Recipe, solver: Solver) -> Callable[[LockRequest], Lock]:
        def solve(request: LockRequest) -> Lock:
            names.append(recipe.name)
            return choose(recipe, solver)(request)

        return solve

    monkeypatch.setattr(locking, "choose_solver", counted)
    return names


@pytest.fixture
def unfinished(copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a target whose ``debian:`` base cannot be made."""

    def refuse(*args: object) -> LockedBase:
        raise ImageError("debian:bookworm: mmdebstrap failed", "repair it")

    monkeypatch.setattr(locking, "resolve_base", refuse)
    edit(copy.recipe, base="debian:bookworm")
    copy.lock.unlink()
    return copy.lock.with_name(f"{copy.lock.name}.unfinished")


def works(*args: object) -> LockedBase:
    return LockedBase("debian:bookworm", "sha256:" + "a" * 64)


def test_continued(
    do: Cli,
    copy: TinyProject,
    unfinished: Path,
    solves: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is solved once, by build or lock, and the lock is that of one uninterrupted command."""
    for command in ("build", "lock"):
        result = do(command, "tiny")
        assert result.code == 8 and solves == ["tiny"]
        assert f"repair it; {unfinished} has the solved packages" in " ".join(result.err.split())
    assert not copy.lock.exists() and do("lock", "--check").code == 4, "nobody takes it for a lock"

    monkeypatch.setattr(locking, "resolve_base", works)
    result = do("lock", "tiny")
    assert result.code == 0 and solves == ["tiny"] and not unfinished.exists()
    assert f"continuing from {unfinished}" in " ".join(result.err.split())
    text = copy.lock.read_bytes()
    copy.lock.unlink()
    assert do("lock", "tiny").code == 0 and solves == ["tiny"] * 2
    assert copy.lock.read_bytes() == text


def test_solved_again(do: Cli, copy: TinyProject, unfinished: Path, solves: list[str]) -> None:
    """A damaged file, another date or other packages: it is solved again. A lock stays."""
    before = b"# whatever\n"
    copy.lock.write_bytes(before)
    do("lock", "tiny")
    unfinished.write_bytes(unfinished.read_bytes()[:-100])
    do("lock", "tiny")
    assert len(solves) == 2
    dated = ["lock", "tiny", "--exclude-newer", "2026-01-01"]
    do(*dated)
    assert len(solves) == 3
    edit(copy.environment, dependencies=["python=3.11"])
    do(*dated)
    assert len(solves) == 4 and copy.lock.read_bytes() == before
