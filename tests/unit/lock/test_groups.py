"""Which packages of a lock go into the image, and what is said about the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import LockError
from builder.core.model import Lock, LockedPackage, LockRecord, Manager
from builder.lock.config.recipe import Recipe
from builder.lock.groups import chosen_groups


def recipe(**values) -> Recipe:
    base = {"name": "t", "base": "debian:bookworm", "lock": "conda-lock.yml", "root": Path("/p")}
    return Recipe.model_validate({**base, "source": Path("/p/recipes/t.yaml"), **values})


def package(
    name: str, category="main", *, needs: str = "", manager: Manager = "conda", platform="linux-64"
) -> LockedPackage:
    url = f"https://host.example/{platform}/{name}-1-0.conda"
    dependencies = dict.fromkeys(needs.split(), "")
    return LockedPackage(
        name, "1", manager, platform, url, "a" * 64, dependencies=dependencies, category=category
    )


LOCK = Lock(
    (
        package("flask", needs="werkzeug Jinja2", manager="pip"),
        package("werkzeug", "dev", needs="markupsafe"),
        package("jinja2", "docs", manager="pip"),
        package("markupsafe", "docs"),
        package("pytest", "dev"),
        package("pytest", "docs"),
        package("sphinx", "docs"),
        package("pytest", "dev", platform="osx-arm64"),
    ),
    ("linux-64", "osx-arm64"),
)


def names(lock: Lock) -> list[str]:
    return [package.name for package in lock.for_platform("linux-64")]


def test_needed_packages() -> None:
    """What a main package needs comes too, whatever its category is, and so does what that needs."""
    assert names(chosen_groups(recipe(), LOCK)) == ["flask", "werkzeug", "jinja2", "markupsafe"]


def test_groups() -> None:
    """A package of two groups is in the lock twice, and in the image once."""
    found = chosen_groups(recipe(groups=["main", "dev", "docs"]), LOCK)
    assert names(found) == ["flask", "werkzeug", "jinja2", "markupsafe", "pytest", "sphinx"]
    assert [p.platform for p in found.packages][-1] == "osx-arm64"
    assert names(chosen_groups(recipe(groups=["dev"]), LOCK)) == ["werkzeug", "markupsafe", "pytest"]


def test_left_out() -> None:
    expected = "left out: dev, docs; to include all: groups: [main, dev, docs]"
    assert chosen_groups(recipe(), LOCK).record.left_out == expected
    assert chosen_groups(recipe(groups=["main", "dev", "docs"]), LOCK).record.left_out == ""


def test_own_lock() -> None:
    """builder's own lock has only what was chosen."""
    own = Lock((package("flask"),), ("linux-64",), record=LockRecord({"conda": "[]"}, left_out="said"))
    assert chosen_groups(recipe(groups=["dev"]), own) is own


@pytest.mark.parametrize(
    ("groups", "lock", "message", "hint"),
    [
        (["main", "dve"], LOCK, "has no group 'dve'", "did you mean dev? it has: dev, docs, main"),
        ((), Lock((package("a", "dev"),), ("linux-64",)), "is in the group main", "groups: [dev]"),
        (
            (),
            Lock((package("a", platform="osx-64"),), ("linux-64",)),
            "has no package for linux-64",
            "it has packages for osx-64",
        ),
    ],
)
def test_mistakes(groups: list[str], lock: Lock, message: str, hint: str) -> None:
    with pytest.raises(LockError) as error:
        chosen_groups(recipe(groups=groups), lock)
    assert message in error.value.message
    assert hint in error.value.hint


def test_similar_names() -> None:
    """conda has packages whose names differ in a dash; PyPI's names are normalised."""
    conda = [package("typing-extensions", needs="typing_extensions"), package("typing_extensions")]
    lock = Lock((*conda, package("Jinja2", manager="pip"), package("jinja2", manager="pip")), ("linux-64",))
    chosen = chosen_groups(recipe(), lock)
    assert names(chosen) == ["typing-extensions", "typing_extensions", "jinja2"]
    assert chosen.record.left_out == ""
