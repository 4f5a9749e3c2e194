"""When a lock keeps its OS packages, and when they are solved again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import UsageError
from builder.core.model import Lock, LockedBase, LockRecord, OsPackage
from builder.core.progress import QUIET
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver import locking
from builder.lock.config.recipe import Recipe
from tests.support import image_kit

WithOsPackages = Callable[[Recipe, Lock, Lock | None], Lock]
OLD, NEW = (
    OsPackage("hello", version, "amd64", "http://debian.example/pool/h.deb", "ab" * 32, 5)
    for version in ("1", "2")
)
BASE = LockedBase("oci:base", f"sha256:{'0' * 64}")
ASKED = {"base-packages": '["hello"]'}
LOCK = Lock((), ("linux-64",), record=LockRecord(ASKED), base=BASE)
LOCKED = replace(LOCK, record=LockRecord(ASKED, os_packages=(OLD,)))
OTHER = LockRecord({"base-packages": '["bye"]'}, os_packages=(OLD,))


@pytest.fixture
def with_os_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WithOsPackages:
    """Adds OS packages to a lock; the base's apt has version 2 of hello."""
    settings = image_kit.settings(tmp_path)
    monkeypatch.setattr(locking, "open_base", lambda *_, **__: image_kit.base())
    monkeypatch.setattr(locking, "solve_os_packages", lambda *_: (NEW,))
    return lambda recipe, lock, previous: locking._with_os_packages(
        recipe, Workspace(settings, Store(settings.cache), QUIET), lock, previous
    )


def recipe(base: str = "oci:base", *packages: str) -> Recipe:
    return Recipe(name="t", base=base, base_packages=packages, environment="e.yml")


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        (None, NEW),
        (LOCKED, OLD),
        (replace(LOCKED, base=LockedBase("oci:base", f"sha256:{'1' * 64}")), NEW),
        (replace(LOCKED, record=OTHER), NEW),
        (LOCK, NEW),
    ],
    ids=["new", "same", "other base", "other packages", "without"],
)
def test_kept(with_os_packages: WithOsPackages, previous: Lock | None, expected: OsPackage) -> None:
    """OS packages stay while the base and ``base_packages`` are the same."""
    made = with_os_packages(recipe("oci:base", "hello"), LOCK, previous)
    assert made.record.os_packages == (expected,)


@pytest.mark.parametrize("made", [recipe(), recipe("debian:bookworm", "hello")])
def test_none(with_os_packages: WithOsPackages, made: Recipe) -> None:
    """Without ``base_packages``, and on a base that contains them, the lock has no OS packages."""
    assert with_os_packages(made, LOCKED, None).record.os_packages is None


def test_python_of_the_base() -> None:
    """conda-lock has nothing to solve for a target with the Python of its base."""
    made = Recipe(name="t", base="debian:bookworm", environment="e.yml", python="base")
    with pytest.raises(UsageError, match="no conda packages to solve"):
        locking.choose_solver(made, "conda-lock")


def test_without_os_packages() -> None:
    assert locking.without_os_packages(["hello", "numpy"], LOCKED) == ("numpy",)
