"""Which packages share a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.core.model import LayerOptions, LockedPackage, Manager
from builder.formats.layers.entry import IndexEntry, PackageIndex
from builder.formats.layers.grouping import (
    BYTECODE_TITLE,
    LayerPlan,
    content_of,
    plan_lock,
    split_index,
)

MIB = 1 << 20


def package(name: str, version: str = "1.0", manager: Manager = "pip") -> LockedPackage:
    digest = f"{abs(hash((name, version, manager))):064x}"[:64]
    return LockedPackage(
        name, version, manager, "linux-64", f"https://example.org/{name}-{version}.whl", digest
    )


def membership(plans: list[LayerPlan]) -> dict[tuple[str, str], frozenset[str]]:
    return {
        (p.manager, p.name): frozenset(x.name for x in plan.packages) for plan in plans for p in plan.packages
    }


ALPHABET = "abcdefghijklmnopqrstuvwxyz"
names = st.lists(st.text(ALPHABET, min_size=1, max_size=8), min_size=1, max_size=60, unique=True)


@settings(max_examples=50)
@given(names, names, st.integers(2, 99), st.dictionaries(st.integers(0, 119), st.integers(0, 300 * MIB)))
def test_each_package_is_in_one_layer(
    conda: list[str], pip: list[str], budget: int, sizes: dict[int, int]
) -> None:
    """Every package is in one layer, in link order, large ones below groups, within the budget."""
    packages = [*(package(n, manager="conda") for n in conda), *(package(n) for n in pip)]
    known = {p.key: sizes.get(i, 0) for i, p in enumerate(packages)}
    plans = plan_lock(packages, known, LayerOptions(), budget=budget)
    assert len(plans) <= budget
    assert sorted(p.key for plan in plans for p in plan.packages) == sorted(p.key for p in packages)
    kinds = [("group" in plan.title, plan.packages[0].manager) for plan in plans]
    groups = [kind for kind in kinds if kind[0]]
    assert kinds[len(kinds) - len(groups) :] == sorted(groups), "groups lie on top, conda's below pip's"
    order = {p.key: i for i, p in enumerate(packages)}
    for plan in plans:
        assert [order[p.key] for p in plan.packages] == sorted(order[p.key] for p in plan.packages), (
            "link order inside"
        )


def test_content_of_titles() -> None:
    """The title of each layer tells its content; a package may have the name of a group."""
    packages = [package(n, manager="conda") for n in ("xz", "group")] + [
        package(n, "2") for n in ("group", "six", "torch", "big")
    ]
    sizes = {p.key: 9 * MIB for p in packages if p.version == "2" and p.name != "six"}
    plans = plan_lock(packages, sizes, LayerOptions(), budget=90, parts={packages[-1].key: 2})
    assert {plan.content.name for plan in plans} >= {"pip group", "pip torch", "pip big"}
    for plan in plans:
        assert content_of(plan.title) == plan.content
        assert content_of(BYTECODE_TITLE + plan.title) == replace(plan.content, kind="bytecode")
    assert content_of("step: pip install x") is content_of("environment prefix") is None


def test_threshold_doubles() -> None:
    """The threshold doubles until the layers fit the budget."""
    packages = [package(f"p{i}") for i in range(100)]
    sizes = {p.key: (i + 1) * MIB for i, p in enumerate(packages)}
    plans = plan_lock(packages, sizes, LayerOptions(groups=4), budget=50)
    alone = {p.packages[0].name for p in plans if "group" not in p.title}
    assert alone == {
        f"p{i}" for i in range(63, 100)
    }  # 4, 8, 16, 32 MiB leave too many; from 64 MiB there are 37


@pytest.mark.parametrize("budget", [-20, 0, 1, 3])
def test_no_room_above_the_base(budget: int) -> None:
    """A budget that no plan fits is exceeded by as little as possible."""
    conda, small, large = package("a", manager="conda"), package("b"), package("c")
    sizes = {p.key: 300 * MIB for p in (conda, small, large)}
    plans = plan_lock([conda, small, large], sizes, LayerOptions(), budget=budget, parts={large.key: 3})
    titles = ["pip c 1.0 (1/3)", "pip c 1.0 (2/3)", "pip c 1.0 (3/3)", "conda group 1: a", "pip group 1: b"]
    assert [plan.title for plan in plans] == titles


@given(names, st.integers(0, 59), st.integers(1, 64))
def test_updates_move_no_package(pip: list[str], which: int, groups: int) -> None:
    """A new version, or a removed package, moves no other package to another layer."""
    which %= len(pip)
    before = [package(n) for n in pip]
    after = [package(n, "2.0" if i == which else "1.0") for i, n in enumerate(pip)]
    options = LayerOptions(groups=groups)
    assert membership(plan_lock(before, {}, options, budget=97)) == membership(
        plan_lock(after, {}, options, budget=97)
    )
    without = membership(plan_lock([p for i, p in enumerate(before) if i != which], {}, options, budget=97))
    for key, members in membership(plan_lock(before, {}, options, budget=97)).items():
        if key[1] != pip[which]:
            assert without[key] == members - {pip[which]}


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100))
def test_split_index(sizes: list[int], limit: int) -> None:
    """The parts have every path once, and no part is over the limit, unless a single file is."""
    entries = tuple(IndexEntry(f"f{i}", "file", n) for i, n in enumerate(sizes))
    given_index = PackageIndex(entries, (), (), 0, ())
    parts = split_index(given_index, limit)
    assert sorted(p for part in parts for p in part) == sorted(e.path for e in given_index.entries)
    by_path = {e.path: e.size for e in given_index.entries}
    assert all(
        sum(by_path[p] for p in part) <= limit or len([p for p in part if by_path[p]]) == 1 for part in parts
    )
