"""Which packages share a layer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.config.recipe import Layers
from builder.errors import LayerError
from builder.layers.entry import IndexEntry, PackageIndex
from builder.layers.plan import (
    MAX_UNPACKED,
    LayerPlan,
    bucket,
    likely_parts,
    name_bucket,
    plan_lock,
    split_index,
)
from builder.model import LockedPackage, Manager

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
    known = {p.key: sizes.get(i) for i, p in enumerate(packages)}
    plans = plan_lock(packages, known, Layers(), budget=budget)
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


def test_large_packages_are_alone() -> None:
    """Packages from the recipe's threshold on have a layer of their own."""
    packages = [package(n) for n in ("torch", "numpy", "small", "tiny")]
    sizes = dict(zip((p.key for p in packages), (200 * MIB, 4 * MIB, 4 * MIB - 1, None), strict=True))
    plans = plan_lock(packages, sizes, Layers(groups=1), budget=97)
    assert [p.title for p in plans] == ["pip torch 1.0", "pip numpy 1.0", "pip group 1: small, tiny"]


def test_large_packages_keep_their_place() -> None:
    """A new version that is a little larger than its neighbour does not move: sizes are powers of two."""
    before = [package("scipy"), package("numpy", manager="conda"), package("torch")]
    after = [package("scipy", "2.0"), *before[1:]]
    titles = []
    for packages, scipy in ((before, 35), (after, 39)):
        sizes = dict(zip((p.key for p in packages), (scipy * MIB, 37 * MIB, 200 * MIB), strict=True))
        titles.append([plan.title for plan in plan_lock(packages, sizes, Layers(), budget=97)])
    assert titles[0] == ["pip torch 1.0", "conda numpy 1.0", "pip scipy 1.0"]
    assert titles[1] == ["pip torch 1.0", "conda numpy 1.0", "pip scipy 2.0"]


def test_threshold_doubles() -> None:
    """The threshold doubles until the layers fit the budget."""
    packages = [package(f"p{i}") for i in range(100)]
    sizes = {p.key: (i + 1) * MIB for i, p in enumerate(packages)}
    plans = plan_lock(packages, sizes, Layers(groups=4), budget=50)
    alone = {p.packages[0].name for p in plans if "group" not in p.title}
    assert alone == {
        f"p{i}" for i in range(63, 100)
    }  # 4, 8, 16, 32 MiB leave too many; from 64 MiB there are 37


@pytest.mark.parametrize("budget", [0, 1])
def test_no_room_above_the_base(budget: int) -> None:
    """A budget that no plan fits is an error."""
    with pytest.raises(LayerError, match=f"{budget} are left above the base image"):
        plan_lock([package("a")], {}, Layers(), budget=budget)


@given(names, st.integers(0, 59), st.integers(1, 64))
def test_updates_move_no_package(pip: list[str], which: int, groups: int) -> None:
    """A new version, or a removed package, moves no other package to another layer."""
    which %= len(pip)
    before = [package(n) for n in pip]
    after = [package(n, "2.0" if i == which else "1.0") for i, n in enumerate(pip)]
    options = Layers(groups=groups)
    assert membership(plan_lock(before, {}, options, budget=97)) == membership(
        plan_lock(after, {}, options, budget=97)
    )
    without = membership(plan_lock([p for i, p in enumerate(before) if i != which], {}, options, budget=97))
    for key, members in membership(plan_lock(before, {}, options, budget=97)).items():
        if key[1] != pip[which]:
            assert without[key] == members - {pip[which]}


def test_groups_depend_on_names() -> None:
    """The group depends on the name, not on the version."""
    assert bucket(package("six", "1.16"), 12) == bucket(package("six", "1.17"), 12)
    # Another result here would move every small package of every published image to another layer.
    assert [bucket(package(n), 12) for n in ("six", "idna", "attrs", "certifi")] == [4, 9, 10, 11]
    assert len({bucket(package(f"p{i}"), 12) for i in range(200)}) == 12


def test_name_bucket() -> None:
    """The number of digest bytes is part of the result: layers use 8, SIF partitions 4."""
    assert name_bucket("pip six", 12) == bucket(package("six"), 12) == 4
    assert [name_bucket(n, 7, digest_bytes=4) for n in ("pip six", "conda group 3", "pip torch")] == [2, 6, 3]


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100))
def test_split_index(sizes: list[int], limit: int) -> None:
    """The parts have every path once, and no part is over the limit, unless a single file is."""
    given_index = PackageIndex(tuple(IndexEntry(f"f{i}", "file", n) for i, n in enumerate(sizes)))
    parts = split_index(given_index, limit)
    assert sorted(p for part in parts for p in part) == sorted(e.path for e in given_index.entries)
    by_path = {e.path: e.size for e in given_index.entries}
    assert all(
        sum(by_path[p] for p in part) <= limit or len([p for p in part if by_path[p]]) == 1 for part in parts
    )


def test_split_keeps_hard_links() -> None:
    """A hard link is in the part of its file."""
    given_index = PackageIndex(
        (
            IndexEntry("a", "file", 60),
            IndexEntry("b", "file", 60),
            IndexEntry("c", "hardlink", 0, "a"),
            IndexEntry("d", "file", 60),
        )
    )
    assert split_index(given_index, 100) == [{"a", "c"}, {"b"}, {"d"}]


def test_package_in_parts() -> None:
    """A package in parts has layers of its own, even if its archive is small."""
    a, b = package("zeros"), package("b")
    plans = plan_lock([a, b], {a.key: 10, b.key: 10}, Layers(groups=1), budget=10, parts={a.key: 3})
    assert [(p.title, p.part, p.parts) for p in plans][:3] == [
        ("pip zeros 1.0 (1/3)", 0, 3),
        ("pip zeros 1.0 (2/3)", 1, 3),
        ("pip zeros 1.0 (3/3)", 2, 3),
    ]
    with pytest.raises(LayerError, match="the packages need 4 layers, and 3 are left"):
        plan_lock([a, b], {}, Layers(groups=1), budget=3, parts={a.key: 3})


def test_group_over_the_limit() -> None:
    """A group with too many bytes is cut between packages."""
    packages = [package(n) for n in "abcd"]
    plans = plan_lock(
        packages,
        {},
        Layers(groups=1),
        budget=10,
        unpacked=dict.fromkeys((p.key for p in packages), MAX_UNPACKED // 2),
    )
    assert [[p.name for p in plan.packages] for plan in plans] == [["a", "b"], ["c", "d"]]


def test_likely_parts() -> None:
    """Only packages that need more than one layer are listed; an unknown size counts as small."""
    assert likely_parts({"a": 10, "b": None, "c": MAX_UNPACKED}) == {"c": 4}


def test_archive_bytes() -> None:
    """A plan sums the sizes that are known, counts the others, and divides by the parts."""
    a, b = package("a"), package("b")
    assert LayerPlan("x", (a, b)).archive_bytes({a.key: 5, b.key: None}) == (5, 1)
    assert LayerPlan("x", (a,), 1, 3).archive_bytes({a.key: 9}) == (3, 0)
