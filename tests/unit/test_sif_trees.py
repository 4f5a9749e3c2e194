"""Layers merged as a stream, against what unpacking them gives; and trees compared."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import tarfile
from pathlib import Path

import pytest

from builder.errors import ImageError
from builder.model import Layer
from builder.store.blobs import Store
from builder.trees.merge import Difference, Merge, Node, Tree, compare_trees, layer_source, read_tree
from builder.trees.rootfs import unpack
from tests.support.image_kit import layer, member
from tests.support.images import make_test_image


def tree_of(layers: list[Layer], store: Store) -> Tree:
    return read_tree([layer_source(x, store) for x in layers])


def unpacked(layers: list[Layer], store: Store, folder: Path) -> dict[str, tuple[str, str]]:
    """Type and content of everything that unpacking gives."""
    unpack(make_test_image(layers), folder, store)
    found = {}
    for where, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(where, name)
            info = path.lstat()
            key = str(path.relative_to(folder))
            if stat.S_ISLNK(info.st_mode):
                found[key] = ("symlink", os.readlink(path))
            elif stat.S_ISDIR(info.st_mode):
                found[key] = ("directory", f"{stat.S_IMODE(info.st_mode) & 0o077:o}")
            else:
                found[key] = ("file", hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def summary(tree: Tree) -> dict[str, tuple[str, str]]:
    values = {
        "symlink": lambda n: n.target,
        "directory": lambda n: f"{n.mode & 0o077:o}",
        "file": lambda n: n.sha256,
    }
    return {p: (n.type, values[n.type](n)) for p, n in tree.items() if p}


def random_layers(r: random.Random, store: Store) -> list[Layer]:
    """Layers that make, replace, hide and link few names again and again."""
    names = ["a", "b", "c", "a/x", "a/y", "b/x", "b/z", "a/x/1", "a/x/2", "b/x/1", "c/deep/er"]
    layers: list[Layer] = []
    visible: set[str] = set()
    for number in range(r.randint(2, 5)):
        here: dict[str, str] = {}
        members = []
        for name in r.sample(names, r.randint(1, 7)):
            parents = ["/".join(name.split("/")[: i + 1]) for i in range(name.count("/"))]
            if (
                name in here
                or any(here.get(p, "dir") != "dir" for p in parents)
                or any(h.startswith(f"{name}/") for h in here)
            ):
                continue
            for parent in parents:
                if parent not in here:
                    here[parent] = "dir"
                    members.append(member(f"{parent}/", mode=0o700 + number))
            folder, _, leaf = name.rpartition("/")
            prefix = f"{folder}/" if folder else ""
            kind = r.choice(["file", "file", "file", "dir", "link", "hard", "whiteout", "opaque"])
            files = [p for p, k in here.items() if k == "file"]
            if kind == "whiteout":
                members.append(member(f"{prefix}.wh.{leaf}", b""))
            elif kind == "opaque":
                here[name] = "dir"
                members += [member(f"{name}/", mode=0o700 + number), member(f"{name}/.wh..wh..opq", b"")]
            elif kind == "dir":
                here[name] = "dir"
                members.append(member(f"{name}/", mode=0o700 + number))
            elif kind == "link":
                here[name] = "link"
                members.append(member(name, target=f"nowhere-{number}"))
            elif kind == "hard" and files:
                here[name] = "hard"
                members.append(member(name, kind=tarfile.LNKTYPE, target=r.choice(files)))
            else:
                here[name] = "file"
                members.append(member(name, f"{name} of {number}".encode()))
        visible |= here.keys()
        layers.append(layer(store, *members))
    return layers


def test_merging_is_what_unpacking_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    kinds = set()
    for seed in range(150):
        layers = random_layers(random.Random(seed), store)
        expected = unpacked(layers, store, tmp_path / str(seed))
        assert summary(tree_of(layers, store)) == expected, f"seed {seed}"
        kinds |= {k for k, _ in expected.values()}
    assert kinds == {"file", "directory", "symlink"}


def test_each_path_comes_once_and_content_is_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    big = random.Random(1).randbytes(3 << 20)
    layers = [layer(store, member("f", b"old"), member("big", big)), layer(store, member("f", b"new"))]
    merge = Merge([layer_source(x, store) for x in layers])
    found = [(m.path, b"".join(bytes(c) for c in content)) for m, content in merge]
    assert sorted(found) == [("big", big), ("f", b"new")]


def test_hard_links_outlive_what_they_link_to(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    link = tarfile.LNKTYPE
    bottom = layer(
        store, member("a", b"A"), member("b", kind=link, target="a"), member("c", kind=link, target="b")
    )
    whiteout = layer(store, member(".wh.a", b""))
    assert {p: n.sha256 for p, n in tree_of([bottom, whiteout], store).items() if p} == {
        p: hashlib.sha256(b"A").hexdigest() for p in "bc"
    }
    across = layer(store, member("d", kind=link, target="a"))
    replaced = layer(store, member("a", b"other"))
    tree = tree_of([bottom, across, replaced], store)
    assert tree["d"].sha256 == tree["b"].sha256 == hashlib.sha256(b"A").hexdigest()
    assert tree["a"].sha256 == hashlib.sha256(b"other").hexdigest()
    with pytest.raises(ImageError, match="hard link 'd' to 'a', which is not there"):
        tree_of([across], store)


def test_hostile_and_damaged_layers(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    with pytest.raises(ImageError, match="unsafe path"):
        tree_of([layer(store, member("../x", b""))], store)
    with pytest.raises(ImageError, match="stands twice in one layer"):
        tree_of([layer(store, member("x", b"1"), member("x", b"2"))], store)
    good = layer(store, member("x", b"1"))
    assert good.path is not None
    good.path.write_bytes(good.path.read_bytes()[:-20] + bytes(20))
    with pytest.raises(ImageError, match="is not the layer sha256:"):
        tree_of([good], store)


def test_comparing() -> None:
    file = Node("file", 0o644, 0, 0, 3, "aa")
    folder = Node("directory", 0o755, 0, 0)
    link = Node("symlink", 0o777, 0, 0, target="x")
    a = {"": folder, "same": file, "f": file, "d": folder, "l": link, "gone": file, "etc": folder}
    b = {
        "": Node("directory", 0o700, 9, 9),
        "same": file,
        "f": Node("file", 0o600, 0, 0, 3, "bb"),
        "d": Node("directory", 0o755, 1, 0),
        "l": Node("symlink", 0o777, 0, 0, target="y"),
        "etc": folder,
        # what a SIF has for the runtime
        ".singularity.d/runscript": file,
        "singularity": Node("symlink", 0o777, 0, 0, target=".singularity.d/runscript"),
        "home": folder,
        "etc/hosts": Node("file", 0o644, 0, 0),
        # and what only looks like it
        "environment": file,
        "etc/resolv.conf": file,
    }
    found = compare_trees(a, b)
    assert [(d.path, d.kind, d.what) for d in found] == [
        ("d", "differs", ("uid",)),
        ("environment", "only-b", ()),
        ("etc/resolv.conf", "only-b", ()),
        ("f", "differs", ("sha256", "mode")),
        ("gone", "only-a", ()),
        ("l", "differs", ("target",)),
    ]
    assert found[3].to_json() == {
        "path": "/f",
        "kind": "differs",
        "what": ["sha256", "mode"],
        "values": {"sha256": ["aa", "bb"], "mode": [0o644, 0o600]},
    }
    assert [d.path for d in compare_trees(a, b, owners=False, modes=False)] == [
        "environment",
        "etc/resolv.conf",
        "f",
        "gone",
        "l",
    ]
    assert compare_trees(a, a) == []
    assert isinstance(found[0], Difference)
