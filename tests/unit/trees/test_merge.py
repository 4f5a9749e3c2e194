"""Layers merged as a stream, compared with what unpacking them makes."""

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
from builder.trees.merge import Merge
from builder.trees.rootfs import unpack
from builder.trees.sources import layer_source
from tests.support.compare import Tree, read_tree
from tests.support.image_kit import layer, member
from tests.support.images import make_test_image
from tests.support.layers import random_layers


def tree_of(layers: list[Layer], store: Store) -> Tree:
    return read_tree([layer_source(x, store) for x in layers])


def unpacked(layers: list[Layer], store: Store, folder: Path) -> dict[str, tuple[str, str]]:
    """The type and content of everything that unpacking makes."""
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
    """A tree in the same form."""
    values = {
        "symlink": lambda n: n.target,
        "directory": lambda n: f"{n.mode & 0o077:o}",
        "file": lambda n: n.sha256,
    }
    return {p: (n.type, values[n.type](n)) for p, n in tree.items() if p}


def test_merge_equals_unpacking(tmp_path: Path) -> None:
    """Random layers merge to the tree that unpacking them makes."""
    store = Store(tmp_path / "cache")
    kinds = set()
    for seed in range(150):
        layers = random_layers(random.Random(seed), store)
        expected = unpacked(layers, store, tmp_path / str(seed))
        assert summary(tree_of(layers, store)) == expected, f"seed {seed}"
        kinds |= {k for k, _ in expected.values()}
    assert kinds == {"file", "directory", "symlink"}


def test_each_path_once(tmp_path: Path) -> None:
    """Each path comes once, with all of its content."""
    store = Store(tmp_path / "cache")
    big = random.Random(1).randbytes(3 << 20)
    layers = [layer(store, member("f", b"old"), member("big", big)), layer(store, member("f", b"new"))]
    merge = Merge([layer_source(x, store) for x in layers])
    found = [(m.path, b"".join(bytes(c) for c in content)) for m, content in merge]
    assert sorted(found) == [("big", big), ("f", b"new")]


def test_hard_links(tmp_path: Path) -> None:
    """A hard link keeps its content when its target is hidden or replaced."""
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
    with pytest.raises(ImageError, match="hard link 'd' to 'a', which does not exist"):
        tree_of([across], store)


def test_hostile_and_damaged_layers(tmp_path: Path) -> None:
    """Unsafe paths, duplicates and changed blobs are errors."""
    store = Store(tmp_path / "cache")
    with pytest.raises(ImageError, match="unsafe path"):
        tree_of([layer(store, member("../x", b""))], store)
    with pytest.raises(ImageError, match="appears twice in one layer"):
        tree_of([layer(store, member("x", b"1"), member("x", b"2"))], store)
    good = layer(store, member("x", b"1"))
    assert good.path is not None
    good.path.write_bytes(good.path.read_bytes()[:-20] + bytes(20))
    with pytest.raises(ImageError, match="does not match the digest of its layer, sha256:"):
        tree_of([good], store)
