"""When a project's lock keeps its OS packages, and when they are solved again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder import project as module
from builder.config.recipe import Recipe
from builder.lock.inputs import BASE_PACKAGES
from builder.lock.ospackages import OS_PACKAGES, OsPackage, os_packages_text
from builder.model import Lock, LockedBase
from builder.project import Project
from builder.steps import apt_solve
from builder.store.blobs import Store
from tests.support import image_kit

OLD, NEW = (
    OsPackage("hello", version, "amd64", "http://deb.debian.org/debian/pool/h.deb", "ab" * 32, 5)
    for version in ("1", "2")
)
BASE = LockedBase("oci:base", f"sha256:{'0' * 64}")
LOCK = Lock((), ("linux-64",), custom={BASE_PACKAGES: '["hello"]'}, base=BASE)
LOCKED = replace(LOCK, custom={**LOCK.custom, OS_PACKAGES: os_packages_text([OLD])})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose bases have version 2 of hello."""
    settings = image_kit.settings(tmp_path)
    monkeypatch.setattr(module, "open_recipe_base", lambda *_, **__: image_kit.base())
    monkeypatch.setattr(apt_solve, "solve_os_packages", lambda *_: (NEW,))
    return Project(tmp_path, settings, Store(settings.cache))


def recipe(base: str = "oci:base", *packages: str) -> Recipe:
    return Recipe(name="t", base=base, base_packages=packages, environment="e.yml")


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        (None, NEW),
        (LOCKED, OLD),
        (replace(LOCKED, base=LockedBase("oci:base", f"sha256:{'1' * 64}")), NEW),
        (replace(LOCKED, custom={**LOCKED.custom, BASE_PACKAGES: '["bye"]'}), NEW),
        (LOCK, NEW),
    ],
    ids=["new", "same", "other base", "other packages", "without"],
)
def test_kept(project: Project, previous: Lock | None, expected: OsPackage) -> None:
    """OS packages stay while the base and ``base_packages`` are the same."""
    made = project._with_os_packages(recipe("oci:base", "hello"), LOCK, previous)
    assert made.custom[OS_PACKAGES] == os_packages_text([expected])


@pytest.mark.parametrize("made", [recipe(), recipe("debian:bookworm", "hello")])
def test_none(project: Project, made: Recipe) -> None:
    """Without ``base_packages``, and on a base that contains them, the lock has no OS packages."""
    assert OS_PACKAGES not in project._with_os_packages(made, LOCKED).custom
