"""Whose file wins where several packages bring the same path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builder.core.errors import LayerError
from builder.core.model import LockedPackage, Manager
from builder.formats.layers.conflicts import Conflict, resolve_conflicts
from builder.formats.layers.entry import IndexEntry, Kind, PackageIndex


def package(name: str, manager: Manager = "conda") -> LockedPackage:
    url = f"https://example.org/{name}-1.0.conda"
    return LockedPackage(name, "1.0", manager, "linux-64", url, name * 64)


def index(*files: str | tuple[str, Kind] | tuple[str, Kind, str], size: int = 1) -> PackageIndex:
    out = []
    for f in files:
        path, kind, target = (f, "file", "") if isinstance(f, str) else (*f, "")[:3]
        out.append(IndexEntry(path, kind, size if kind == "file" else 0, target))  # type: ignore[arg-type]
    return PackageIndex(tuple(out), (), (), 0, ())


def no_target(package: LockedPackage, path: str) -> str:
    raise AssertionError(f"{package.name}'s link at {path} has no files of other packages below it")


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
    )


A, B, C = package("a"), package("b"), package("c", "pip")


def test_last_linked_wins() -> None:
    """The package that is linked last wins, and the others leave the file out."""
    conflicts, leave_out, moved = resolve(
        (A, index("x", "y", "only/a")), (B, index("x")), (C, index("x", "y"))
    )
    assert conflicts == (Conflict("x", "c", ("a", "b")), Conflict("y", "c", ("a",)))
    assert leave_out == {"a": {"x", "y"}, "b": {"x"}}
    assert moved == {}


def test_link_loses_to_file() -> None:
    """A symlink can lose to a file; directories are no conflict."""
    conflicts, leave_out, _ = resolve(
        (A, index(("d", "dir"), ("d/x", "symlink"))), (B, index(("d", "dir"), "d/x"))
    )
    assert conflicts == (Conflict("d/x", "b", ("a",)),) and leave_out == {"a": {"d/x"}}


def test_file_below_a_link() -> None:
    """A file below a symlink is moved to where the link points."""
    reads: list[str] = []

    def link(owner: LockedPackage, path: str) -> str:
        reads.append(f"{owner.name} {path}")
        return {"e/lib64": "lib", "e/abs": "/e/lib"}[path]

    conflicts, leave_out, moved = resolve(
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


@pytest.mark.parametrize(
    ("brought", "target", "message"),
    [
        ((index("d"), index("d/x")), "", "b needs a folder at /d, where another package has a file"),
        ((index("d/x"), index("d")), "", "a needs a folder at /d, where another package has a file"),
        ((index(("d", "symlink")), index("d/x")), "../../etc", "the link /d of a points outside the image"),
        ((index(("d", "symlink")), index("d/x")), "d", "the symlinks on the way to /d form a loop"),
        (
            (index(("d", "symlink"), "r/x/y"), index("d/x")),
            "r",
            "b has a file at /r/x, where another package has a folder",
        ),
    ],
)
def test_incompatible_packages(brought: tuple[PackageIndex, PackageIndex], target: str, message: str) -> None:
    """Packages that cannot share an environment are named."""
    with pytest.raises(LayerError, match=message) as caught:
        resolve((A, brought[0]), (B, brought[1]), link=lambda p, path: target)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"e/x": "d/e", "e/y": "x/.."}, "e/d/new"),
        ({"e/x": "d/e", "e/y": "x/../.."}, "e/new"),
        ({"e/x": "d", "e/y": "x/y/../../z"}, "e/z/new"),
        ({"e/x": "z", "e/y": "x"}, "e/z/new"),
        ({"e/x": ".", "e/y": "x/.."}, ""),
        ({"e/x": "/e", "e/y": "x/../etc"}, ""),
    ],
)
def test_links_through_links(texts: dict[str, str], expected: str) -> None:
    """A ``..`` applies to where the links before it lead, and no chain of links leaves the prefix."""
    links = index(("e/x", "symlink"), ("e/y", "symlink"), "e/d/e/f")
    packages = [A, B]
    indexes = {A.key: links, B.key: index("e/y/new")}

    def moved() -> dict[str, str]:
        found = resolve_conflicts(packages, indexes, lambda p, path: texts[path], "/e")
        return dict(found.moved[B.key])

    if expected:
        assert moved() == {"e/y/new": expected}
        return
    with pytest.raises(LayerError, match="the link /e/x|the link /e/y of a points outside the environment"):
        moved()
