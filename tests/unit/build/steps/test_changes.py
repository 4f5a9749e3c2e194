"""The layer of a difference, from an overlay's upper folder and from an engine's layer."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from builder.build.steps.changes import Changes, LeftNode, compare_layers, nodes_of_layer, nodes_of_upper
from builder.core.errors import ImageError, LayerError
from builder.core.store.blobs import Store
from builder.formats.layers.content import read_whole
from builder.formats.layers.tar import with_parents
from tests.support.image_kit import layer, member


@pytest.fixture
def lower(tmp_path: Path) -> Path:
    root = tmp_path / "lower"
    for name in ("etc/motd", "etc/hosts", "opt/a/x", "opt/a/z", "opt/deep/er/x", "srv/file"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "srv/link").symlink_to("./file")
    return root


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    (tmp_path / "upper").mkdir()
    return tmp_path / "upper"


def put(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def shown(found: Changes) -> list[str]:
    return [f"{e.path} {e.kind} {e.mode:o}" for e in found.entries()]


def test_new_and_changed(upper: Path, lower: Path) -> None:
    """Parents come first; what is equal, and empty parents of it, are left out."""
    put(upper, "opt/a/x", "changed", 0o755)
    put(upper, "opt/a/z", "opt/a/z")
    put(upper, "opt/new/file", "new", 0o4755)
    put(upper, "srv/file", "srv/file")
    (upper / "srv/link").symlink_to("./file")
    (upper / "opt/short").symlink_to("./a/")
    found = list(Changes(nodes_of_upper(upper), lower).entries())
    assert [(e.path, e.kind, e.mode) for e in found] == [
        ("opt", "dir", 0o755),
        ("opt/a", "dir", 0o755),
        ("opt/a/x", "file", 0o755),
        ("opt/new", "dir", 0o755),
        ("opt/new/file", "file", 0o4755),
        ("opt/short", "symlink", 0o777),
    ]
    assert found[-1].target == "./a/"


def test_hard_links(upper: Path, lower: Path) -> None:
    """The first name is the file; a name that is left out is no target."""
    first = put(upper, "opt/b", "text")
    os.link(first, upper / "opt/c")
    old = put(upper, "etc/motd", "etc/motd")
    os.link(old, upper / "opt/motd")
    found = {e.path: e for e in Changes(nodes_of_upper(upper), lower).entries()}
    assert found["opt/b"].kind == "file"
    assert (found["opt/c"].kind, found["opt/c"].target) == ("hardlink", "opt/b")
    assert "etc/motd" not in found
    assert found["opt/motd"].kind == "file"


def test_unreadable(upper: Path, lower: Path) -> None:
    """What the step closed to its owner is read; the layer has the modes that the step left."""
    put(upper, "opt/b/z", "z", 0o111)
    (upper / "opt/a").hardlink_to(upper / "opt/b/z")
    (upper / "opt/b").chmod(0o000)
    upper.chmod(0o000)
    found = {e.path: e for e in Changes(nodes_of_upper(upper), lower).entries()}
    assert [f"{e.kind} {e.mode:o}" for e in found.values()][-3:] == ["file 111", "dir 0", "hardlink 111"]
    assert (upper / "opt/b/z").stat().st_mode & 0o777 == 0o511


def test_whiteouts(lower: Path) -> None:
    """A removed file, an opaque folder (each name of the folder below), and one in it."""
    nodes = {
        "etc": LeftNode("dir", 0o755),
        "etc/motd": LeftNode("whiteout"),
        "etc/never": LeftNode("whiteout"),
        "opt": LeftNode("dir", 0o755, opaque=True),
        "opt/deep": LeftNode("dir", 0o755),
        "opt/deep/er": LeftNode("dir", 0o755),
    }
    assert shown(Changes(nodes, lower)) == [
        "etc dir 755",
        "etc/.wh.motd file 644",
        "opt dir 755",
        "opt/.wh.a file 644",
        "opt/deep dir 755",
        "opt/deep/er dir 755",
        "opt/deep/er/.wh.x file 644",
    ]


def test_layer_of_an_engine(tmp_path: Path, lower: Path) -> None:
    """The same entries as from an overlay."""
    store = Store(tmp_path / "cache")
    made = layer(
        store,
        member("opt/", mode=0o755),
        member("opt/a/", mode=0o755),
        member("opt/a/.wh.x", b""),
        member("opt/b", b"text", mode=0o600),
        member("opt/c", kind=tarfile.LNKTYPE, target="opt/b"),
        member("opt/deep/", mode=0o755),
        member("opt/deep/.wh..wh..opq", b""),
        member("opt/s", kind=tarfile.SYMTYPE, target="b"),
        member("run/x", b"container"),
        member("srv/file", b"srv/file", mode=0o644),
    )
    found = list(Changes(nodes_of_layer(made, store, tmp_path / "spool"), lower).entries())
    assert [(e.path, e.kind) for e in found] == [
        ("opt", "dir"),
        ("opt/a", "dir"),
        ("opt/a/.wh.x", "file"),
        ("opt/b", "file"),
        ("opt/c", "hardlink"),
        ("opt/deep", "dir"),
        ("opt/deep/.wh.er", "file"),
        ("opt/s", "symlink"),
    ]
    assert read_whole(found[3]) == b"text"


def test_name_of_a_whiteout(upper: Path) -> None:
    """A file of such a name would delete another one."""
    put(upper, "opt/.wh.a")
    with pytest.raises(ImageError, match=r"the step left /opt/\.wh\.a, a name that deletes"):
        nodes_of_upper(upper)


@pytest.mark.parametrize("name", ["d/" * 300 + "x", os.fsdecode(b"caf\xe9")])
def test_impossible_paths(upper: Path, lower: Path, name: str) -> None:
    """A path that is too deep, or no text, is in no layer."""
    put(upper, name)
    with pytest.raises(LayerError, match="in 101 parts|unsafe path"):
        list(with_parents(Changes(nodes_of_upper(upper), lower).entries()))


def test_differences(tmp_path: Path) -> None:
    """What differs between two runs of a step."""
    store = Store(tmp_path)
    first = layer(store, member("a", b"1"), member("b", b"12"), member("c", b"x"), member("same", b"s"))
    second = layer(store, member("a", b"2"), member("b", b"1"), member("same", b"s"), member("d", b""))
    found = compare_layers("make", first, second, store)
    assert [(d.path, d.what) for d in found] == [
        ("/a", "content"),
        ("/b", "size, content"),
        ("/c", "only in the first run"),
        ("/d", "only in the second run"),
    ]
    assert compare_layers("make", first, first, store) == []
