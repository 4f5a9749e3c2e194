"""Which packages share a layer, and whose file wins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.config.recipe import Layers
from builder.errors import LayerError
from builder.layers.entry import IndexEntry, Kind, PackageIndex
from builder.layers.plan import (
    MAX_UNPACKED,
    Conflict,
    LayerPlan,
    bucket,
    plan_lock,
    resolve_conflicts,
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


names = st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=60, unique=True)


@settings(max_examples=50)
@given(names, names, st.integers(2, 99), st.dictionaries(st.integers(0, 119), st.integers(0, 300 * MIB)))
def test_every_package_is_in_one_layer_and_the_budget_holds(
    conda: list[str], pip: list[str], budget: int, sizes: dict[int, int]
) -> None:
    packages = [*(package(n, manager="conda") for n in conda), *(package(n) for n in pip)]
    known = {p.key: sizes.get(i) for i, p in enumerate(packages)}
    plans = plan_lock(packages, known, Layers(), budget=budget)
    assert len(plans) <= budget
    assert sorted(p.key for plan in plans for p in plan.packages) == sorted(p.key for p in packages)
    managers = [plan.packages[0].manager for plan in plans]
    assert managers == sorted(managers), "conda's layers lie below pip's"
    order = {p.key: i for i, p in enumerate(packages)}
    for plan in plans:
        assert [order[p.key] for p in plan.packages] == sorted(order[p.key] for p in plan.packages), (
            "link order inside"
        )


def test_large_packages_have_a_layer_of_their_own_from_the_recipes_threshold() -> None:
    packages = [package(n) for n in ("torch", "numpy", "small", "tiny")]
    sizes = dict(zip((p.key for p in packages), (200 * MIB, 4 * MIB, 4 * MIB - 1, None), strict=True))
    plans = plan_lock(packages, sizes, Layers(groups=1), budget=97)
    assert [p.title for p in plans] == ["pip group 1: small, tiny", "pip numpy 1.0", "pip torch 1.0"]


def test_the_threshold_doubles_until_the_layers_fit() -> None:
    packages = [package(f"p{i}") for i in range(100)]
    sizes = {p.key: (i + 1) * MIB for i, p in enumerate(packages)}
    plans = plan_lock(packages, sizes, Layers(groups=4), budget=50)
    alone = {p.packages[0].name for p in plans if "group" not in p.title}
    assert alone == {
        f"p{i}" for i in range(63, 100)
    }  # 4, 8, 16, 32 MiB leave too many; from 64 MiB there are 37


@pytest.mark.parametrize("budget", [0, 1])
def test_no_room_above_the_base_image(budget: int) -> None:
    with pytest.raises(LayerError, match=f"{budget} are left above the base image"):
        plan_lock([package("a")], {}, Layers(), budget=budget)


@given(names, st.integers(0, 59), st.integers(1, 64))
def test_a_bump_moves_nobody_else(pip: list[str], which: int, groups: int) -> None:
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


def test_groups_are_a_matter_of_names_alone() -> None:
    assert bucket(package("six", "1.16"), 12) == bucket(package("six", "1.17"), 12)
    # Written down: another answer here would move every small package of every published image to another layer.
    assert [bucket(package(n), 12) for n in ("six", "idna", "attrs", "certifi")] == [4, 9, 10, 11]
    assert len({bucket(package(f"p{i}"), 12) for i in range(200)}) == 12


def index(*files: str | tuple[str, Kind] | tuple[str, Kind, str], size: int = 1) -> PackageIndex:
    out = []
    for f in files:
        path, kind, target = (f, "file", "") if isinstance(f, str) else (*f, "")[:3]
        out.append(IndexEntry(path, kind, size if kind == "file" else 0, target))  # type: ignore[arg-type]
    return PackageIndex(tuple(out))


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100))
def test_a_split_keeps_every_path_and_the_limit(sizes: list[int], limit: int) -> None:
    given_index = PackageIndex(tuple(IndexEntry(f"f{i}", "file", n) for i, n in enumerate(sizes)))
    parts = split_index(given_index, limit)
    assert sorted(p for part in parts for p in part) == sorted(e.path for e in given_index.entries)
    by_path = {e.path: e.size for e in given_index.entries}
    assert all(
        sum(by_path[p] for p in part) <= limit or len([p for p in part if by_path[p]]) == 1 for part in parts
    )


def test_a_hard_link_stays_with_its_file() -> None:
    given_index = PackageIndex(
        (
            IndexEntry("a", "file", 60),
            IndexEntry("b", "file", 60),
            IndexEntry("c", "hardlink", 0, "a"),
            IndexEntry("d", "file", 60),
        )
    )
    assert split_index(given_index, 100) == [{"a", "c"}, {"b"}, {"d"}]


def test_a_package_in_parts_has_layers_of_its_own_however_small_its_archive() -> None:
    a, b = package("zeros"), package("b")
    plans = plan_lock([a, b], {a.key: 10, b.key: 10}, Layers(groups=1), budget=10, parts={a.key: 3})
    assert [(p.title, p.part, p.parts) for p in plans][1:] == [
        ("pip zeros 1.0 (1/3)", 0, 3),
        ("pip zeros 1.0 (2/3)", 1, 3),
        ("pip zeros 1.0 (3/3)", 2, 3),
    ]
    with pytest.raises(LayerError, match="the packages need 4 layers, and 3 are left"):
        plan_lock([a, b], {}, Layers(groups=1), budget=3, parts={a.key: 3})


def test_a_group_over_the_limit_is_cut() -> None:
    packages = [package(n) for n in "abcd"]
    plans = plan_lock(
        packages,
        {},
        Layers(groups=1),
        budget=10,
        unpacked=dict.fromkeys((p.key for p in packages), MAX_UNPACKED // 2),
    )
    assert [[p.name for p in plan.packages] for plan in plans] == [["a", "b"], ["c", "d"]]


def no_target(package: LockedPackage, path: str) -> str:
    raise AssertionError(f"{package.name}'s link at {path} lies on nobody's way")


def resolve(
    *brought: tuple[LockedPackage, PackageIndex], link: Callable[[LockedPackage, str], str] = no_target
) -> tuple[tuple[Conflict, ...], dict[str, set[str]], dict[str, dict[str, str]], tuple[str, ...]]:
    packages = [p for p, _ in brought]
    got = resolve_conflicts(packages, {p.key: i for p, i in brought}, link)
    name = {p.key: p.name for p in packages}
    return (
        got.conflicts,
        {name[k]: set(v) for k, v in got.leave_out.items()},
        {name[k]: dict(v) for k, v in got.moved.items()},
        got.notes,
    )


A, B, C = package("a", manager="conda"), package("b", manager="conda"), package("c")


def test_the_last_linked_wins() -> None:
    conflicts, leave_out, moved, notes = resolve(
        (A, index("x", "y", "only/a")), (B, index("x")), (C, index("x", "y"))
    )
    assert conflicts == (Conflict("x", "c", ("a", "b")), Conflict("y", "c", ("a",)))
    assert leave_out == {"a": {"x", "y"}, "b": {"x"}}
    assert (moved, notes) == ({}, ())


def test_a_link_can_lose_to_a_file_and_directories_are_shared() -> None:
    conflicts, leave_out, _, _ = resolve(
        (A, index(("d", "dir"), ("d/x", "symlink"))), (B, index(("d", "dir"), "d/x"))
    )
    assert conflicts == (Conflict("d/x", "b", ("a",)),) and leave_out == {"a": {"d/x"}}


def test_a_file_below_a_link_goes_where_the_link_points() -> None:
    reads: list[str] = []

    def link(owner: LockedPackage, path: str) -> str:
        reads.append(f"{owner.name} {path}")
        return {"e/lib64": "lib", "e/abs": "/e/lib"}[path]

    conflicts, leave_out, moved, _ = resolve(
        (A, index(("e/lib64", "symlink"), ("e/abs", "symlink"), "e/lib/x", "e/lib/z")),
        (B, index("e/lib64/x", "e/abs/sub/y", ("e/lib64", "dir"))),
        (C, index("e/lib/x", "e/lib64/z")),
        link=link,
    )
    assert moved == {
        "b": {"e/lib64/x": "e/lib/x", "e/abs/sub/y": "e/lib/sub/y", "e/lib64": "e/lib"},
        "c": {"e/lib64/z": "e/lib/z"},
    }
    assert conflicts == (Conflict("e/lib/x", "c", ("a", "b")), Conflict("e/lib/z", "c", ("a",)))
    assert leave_out == {"a": {"e/lib/x", "e/lib/z"}, "b": {"e/lib64/x"}}
    assert sorted(reads) == ["a e/abs", "a e/lib64"], "every link is read once"


def test_both_names_of_one_file_in_one_package() -> None:
    conflicts, leave_out, moved, _ = resolve(
        (A, index(("lib64", "symlink"), "lib/a")), (B, index("lib/x", "lib64/x")), link=lambda p, path: "lib"
    )
    assert (conflicts, leave_out, moved) == ((), {"b": {"lib/x"}}, {"b": {"lib64/x": "lib/x"}})


def test_a_link_that_lost_leads_nowhere() -> None:
    with pytest.raises(LayerError, match="c needs a folder at /d, where another package has a file"):
        resolve((A, index(("d", "symlink"))), (B, index("d")), (C, index("d/x")))


@pytest.mark.parametrize(
    ("brought", "target", "message"),
    [
        ((index("d"), index("d/x")), "", "b needs a folder at /d, where another package has a file"),
        ((index("d/x"), index("d")), "", "a needs a folder at /d, where another package has a file"),
        ((index(("d", "symlink")), index("d/x")), "../../etc", "the link /d of a leads out of the image"),
        ((index(("d", "symlink")), index("d/x")), "d", "goes round in symlinks"),
        (
            (index(("d", "symlink"), "r/x/y"), index("d/x")),
            "r",
            "b has a file at /r/x, where another package has a folder",
        ),
    ],
)
def test_what_cannot_live_together(
    brought: tuple[PackageIndex, PackageIndex], target: str, message: str
) -> None:
    with pytest.raises(LayerError, match=message) as caught:
        resolve((A, brought[0]), (B, brought[1]), link=lambda p, path: target)
    assert caught.value.hint


def test_names_that_differ_in_case_only_are_noted() -> None:
    assert resolve((A, index("s/README", "s/x")), (B, index("s/readme")))[3] == (
        "/s/README (a) and /s/readme (b) differ in case only",
    )
