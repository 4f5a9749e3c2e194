"""Layers of other tools: what engines unpack is read in the same way."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.core.model import Layer
from builder.core.store.blobs import Store
from builder.formats.trees import bounds
from builder.formats.trees.member import DO_NOT_USE, NOT_UNPACKED
from builder.formats.trees.merge import Merge
from builder.formats.trees.rootfs import write_tree
from builder.formats.trees.sources import layer_source, squashfs_source
from builder.formats.trees.squashfs.writer import SquashfsWriter
from tests.support.compare import read_tree
from tests.support.image_kit import EPOCH, layer, member, plain_layer, tar_bytes
from tests.support.images import make_test_image, unpack

LINK = tarfile.LNKTYPE
A, B = ("file", b"A"), ("file", b"B")


def squashed(layers: list[Layer], file: Path, store: Store) -> Path:
    with file.open("wb") as out, SquashfsWriter(out, "zstd", 1, EPOCH) as writer:
        for one, content in Merge([layer_source(one, store) for one in layers]):
            writer.add(one, content)
        writer.finish()
    return file


def found(root: Path) -> dict[str, tuple[str, bytes] | str]:
    """What is in a folder: content of files, targets of links, modes of folders."""
    tree: dict[str, tuple[str, bytes] | str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            tree[name] = f"-> {path.readlink()}"
        else:
            tree[name] = f"{path.stat().st_mode & 0o777:o}" if path.is_dir() else ("file", path.read_bytes())
    return tree


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param(
            [member("d/", mode=0o700), member("d/a", b"A"), member("d/", mode=0o750), member("d/b", b"B")],
            {"d": "750", "d/a": A, "d/b": B},
            id="a folder twice",
        ),
        pytest.param([member("a", b"A"), member("a", b"B")], {"a": B}, id="a file twice"),
        pytest.param([member("a", target="x"), member("a", target="y")], {"a": "-> y"}, id="a link twice"),
        pytest.param(
            [member("a", b"A"), member("a/", mode=0o755), member("a/b", b"B")],
            {"a": "755", "a/b": B},
            id="a file, then a folder",
        ),
        pytest.param(
            [member("d/", mode=0o755), member("d/a", b"A"), member("d/e/f", b"A"), member("d", b"B")],
            {"d": B},
            id="a folder, then a file",
        ),
        pytest.param(
            [
                member("b/", mode=0o755),
                member("a", target="b"),
                member("a/", mode=0o755),
                member("a/x", b"A"),
            ],
            {"a": "755", "a/x": A, "b": "755"},
            id="a link, then a folder",
        ),
        pytest.param(
            [member("a", b"A"), member("b", kind=LINK, target="a"), member("a", b"B")],
            {"a": B, "b": A},
            id="a hard link to a file that is listed again",
        ),
        pytest.param(
            [member("b/", mode=0o755), member("a", target="b"), member("a/x", b"A")],
            {"a": "-> b", "b": "755", "b/x": A},
            id="below a link",
        ),
        pytest.param(
            [member("a", target="/b/../c"), member("a/x", b"A"), member("y", kind=LINK, target="a/x")],
            {"a": "-> /b/../c", "c": "755", "c/x": A, "y": A},
            id="below a link that leads nowhere",
        ),
        pytest.param([member("a", b"A"), member("a/x", b"B")], {"a": "755", "a/x": B}, id="below a file"),
        pytest.param(
            [member("d/../a", b"A"), member("/b/./c", b"B")], {"a": A, "b": "755", "b/c": B}, id="dots"
        ),
        pytest.param([member("x/.wh.gone", b""), member("a", b"A")], {"a": A}, id="whiteouts"),
    ],
)
def test_as_engines_unpack(
    store: Store, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], expected: dict[str, object]
) -> None:
    """The last member of a name counts, and links of the layer are followed, as in umoci 0.6."""
    one = layer(store, *members)
    unpack(make_test_image([one]), tmp_path / "unpacked", store)
    assert found(tmp_path / "unpacked") == expected
    write_tree([layer_source(one, store)], tmp_path / "at-once")
    assert found(tmp_path / "at-once") == expected
    write_tree([squashfs_source(squashed([one], tmp_path / "a.sqsh", store))], tmp_path / "squashed")
    assert found(tmp_path / "squashed") == expected


def test_content_of_a_repeated_file(store: Store) -> None:
    """A hard link of a layer above has the content that the file has at last."""
    lower = layer(store, member("a", b"first"), member("a", b"last"))
    upper = layer(store, member("b", kind=LINK, target="a"), member(".wh.a", b""))
    tree = read_tree([layer_source(one, store) for one in (lower, upper)])
    assert {path for path in tree if path} == {"b"}
    assert tree["b"].sha256 == hashlib.sha256(b"last").hexdigest()


@pytest.mark.parametrize("cut", [0, 1024, 1024 + 511])
def test_no_end_blocks(store: Store, tmp_path: Path, cut: int) -> None:
    """A layer may end after its last member, and one of 0 bytes has none."""
    tar = tar_bytes([member("a", b"A")])[: 1024 + 1024]
    layers = [plain_layer(store, tar[: len(tar) - cut]), plain_layer(store, b"")]
    unpack(make_test_image(layers), tmp_path / "root", store)
    assert found(tmp_path / "root") == {"a": A}


def test_sparse_file_counts_in_full(store: Store, tmp_path: Path) -> None:
    """A small layer cannot hold a file beyond the limit of a tree: its holes count."""
    info, _ = member("a")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(bounds.MAX_CONTENT + 1)}
    with pytest.raises(ImageError, match="its files have more than 1099.5 GB") as caught:
        unpack(make_test_image([layer(store, (info, b""))]), tmp_path / "root", store)
    assert "damaged or hostile" in caught.value.hint
    info.pax_headers["GNU.sparse.size"] = str(3 << 19)
    unpack(make_test_image([layer(store, (info, b""))]), tmp_path / "small", store)
    assert (tmp_path / "small/a").stat().st_size == 3 << 19


@pytest.mark.parametrize(
    ("one", "hint"),
    [
        (member("a", kind=b"Z"), NOT_UNPACKED),
        (member("../a", b""), NOT_UNPACKED),
        (member("a" * 5000, b""), DO_NOT_USE),
        (member("d/" * 300 + "a", b""), DO_NOT_USE),
    ],
)
def test_hints(store: Store, tmp_path: Path, one: tuple[tarfile.TarInfo, bytes], hint: str) -> None:
    """Only what is beyond a limit is called hostile."""
    with pytest.raises(ImageError) as caught:
        unpack(make_test_image([layer(store, one)]), tmp_path / "root", store)
    assert caught.value.hint == hint
