"""Bounds of trees that others wrote: layers that are hostile, and squashfs bombs."""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.sif.write import write_sif
from builder.formats.trees import bounds
from builder.formats.trees.bounds import MAX_FOLDERS, MAX_PATH
from tests.support.image_kit import image, layer, member, settings
from tests.support.images import unpack


def refused(store: Store, folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    """The message with which an image of these members is neither unpacked nor written as a SIF."""
    made = image(store, layer(store, *members))
    messages = []
    with pytest.raises(ImageError) as caught:
        unpack(made, folder / "root", store)
    messages.append(caught.value.message)
    assert not (folder / "root").exists()
    with pytest.raises(ImageError) as caught:
        write_sif(made, folder / "a.sif", Workspace(settings(folder), store))
    messages.append(caught.value.message)
    assert not (folder / "a.sif").exists()
    assert all(message.isprintable() for message in messages)
    return " & ".join(messages)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mtime", "inf", "impossible time"),
        ("uid", "one", "damaged header"),
        ("size", "-5", "impossible size"),
        ("size", str(1 << 62), "more than 1099.5 GB"),
        ("linkpath", "a\0b", "a path with a NUL"),
    ],
)
def test_impossible_headers(store: Store, tmp_path: Path, key: str, value: str, message: str) -> None:
    """Values of pax headers that no file can have are errors of one line."""
    info, data = member("file", b"x") if key != "linkpath" else member("file", target="x")
    info.pax_headers = {key: value}
    both = refused(store, tmp_path, (info, data))
    assert re.search(message, both), both


def test_deepest_path(store: Store, tmp_path: Path) -> None:
    """The deepest path that is allowed is unpacked, merged, written, hidden and removed."""
    path = "d/" * MAX_FOLDERS
    layers = [
        layer(store, member(path + "old", b"x")),
        layer(store, member(path + "new", b"x")),
        layer(store, member(path + ".wh.old", b"")),
        layer(store, member("d/.wh..wh..opq", b""), member(path + "last", b"x")),
    ]
    made = image(store, *layers)
    unpack(made, tmp_path / "root", store)
    assert os.listdir(tmp_path / "root" / path) == ["last"]
    for layout in ("flat", "layered"):
        write_sif(made, tmp_path / "a.sif", Workspace(settings(tmp_path), store), layout=layout)


def test_size_of_a_tree(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and content of a tree are bounded."""
    monkeypatch.setattr(bounds, "MAX_NAMES", 5000)
    both = refused(store, tmp_path, *(member(f"{i:0100}", b"") for i in range(30)))
    assert both.count("the names of its files need more than 5.0 kB") == 2
    both = refused(store, tmp_path, *(member(str(i), target="x" * 2000) for i in range(3)))
    assert both.count("the names of its files need more than 5.0 kB") == 2
    monkeypatch.setattr(bounds, "MAX_CONTENT", 5000)
    both = refused(store, tmp_path, *(member(str(i), b"x" * 1000) for i in range(6)))
    assert both.count("its files have more than 5.0 kB") == 2


@pytest.mark.parametrize("path", ["d/" * (MAX_FOLDERS + 1) + "f", "d/" * 1500 + "f", "d" * (MAX_PATH + 1)])
def test_deep_paths(store: Store, tmp_path: Path, path: str) -> None:
    """A path that is too deep or too long is refused, so nothing that walks a tree can recurse for ever."""
    both = refused(store, tmp_path, member(path, b"x"))
    assert "folders deep, at most 256 are allowed" in both or "at most 4095 are allowed" in both
    assert "d" * 150 not in both
