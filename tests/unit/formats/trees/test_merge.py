"""Layers merged as a stream, compared with what unpacking them makes."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import tarfile
from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.core.model import Layer
from builder.core.store.blobs import Store
from builder.formats.trees.rootfs import write_tree
from builder.formats.trees.sources import layer_source
from tests.support.compare import Tree, read_tree
from tests.support.image_kit import layer, member
from tests.support.images import make_test_image, unpack
from tests.support.layers import random_layers


def tree_of(layers: list[Layer], store: Store) -> Tree:
    return read_tree([layer_source(x, store) for x in layers])


Files = dict[str, tuple[str, str]]


def remove(tree: Files, path: str) -> None:
    """Removes a path and everything below it."""
    for name in [name for name in tree if f"{name}/".startswith(f"{path}/")]:
        del tree[name]


def apply_whiteout(tree: Files, path: str) -> None:
    """Removes what a whiteout of the next layer hides."""
    folder, _, name = path.rpartition("/")
    if name == ".wh..wh..opq":
        for child in [child for child in tree if child.startswith(f"{folder}/")]:
            del tree[child]
    elif name.startswith(".wh."):
        remove(tree, f"{folder}/{name[4:]}".lstrip("/"))


def apply_member(tree: Files, m: tarfile.TarInfo, data: bytes) -> None:
    """Adds a member of the next layer."""
    if not m.isdir() or tree.get(m.name, ("",))[0] != "directory":
        remove(tree, m.name)
    if m.isdir():
        tree[m.name] = ("directory", f"{m.mode & 0o077:o}")
    elif m.islnk():
        tree[m.name] = tree[m.linkname]
    elif m.issym():
        tree[m.name] = ("symlink", m.linkname)
    else:
        tree[m.name] = ("file", hashlib.sha256(data).hexdigest())


def applied(layers: list[Layer]) -> Files:
    """The tree as image-spec describes it: the layers one after the other, each layer's whiteouts first."""
    tree: Files = {}
    for one in layers:
        assert one.path is not None
        with tarfile.open(one.path) as tar:
            members = [(m, tar.extractfile(m).read() if m.isreg() else b"") for m in tar]  # type: ignore[union-attr]
        for m, _ in members:
            apply_whiteout(tree, m.name)
        for m, data in members:
            if ".wh." not in m.name:
                apply_member(tree, m, data)
    return tree


def on_disk(folder: Path) -> Files:
    """The type and content of everything in a folder."""
    found = {}
    for path in folder.rglob("*"):
        info = path.lstat()
        key = str(path.relative_to(folder))
        if stat.S_ISLNK(info.st_mode):
            found[key] = ("symlink", os.readlink(path))
        elif stat.S_ISDIR(info.st_mode):
            found[key] = ("directory", f"{stat.S_IMODE(info.st_mode) & 0o077:o}")
        else:
            found[key] = ("file", hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def test_random_layers(tmp_path: Path) -> None:
    """Random layers unpack to the tree that image-spec describes, also as links to layers unpacked alone."""
    store = Store(tmp_path / "cache")
    kinds = set()
    for seed in range(150):
        layers = random_layers(random.Random(seed), store)
        expected = applied(layers)
        unpack(make_test_image(layers), tmp_path / f"{seed}", store)
        assert on_disk(tmp_path / f"{seed}") == expected, f"seed {seed}"
        write_tree([layer_source(one, store) for one in layers], tmp_path / f"{seed}-at-once")
        assert on_disk(tmp_path / f"{seed}-at-once") == expected, f"seed {seed}"
        kinds |= {k for k, _ in expected.values()}
    assert kinds == {"file", "directory", "symlink"}


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
