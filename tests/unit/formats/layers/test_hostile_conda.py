"""Conda packages with every trick of the tar format: a one-line error, or a layer inside the prefix."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from builder.core.errors import LayerError
from builder.core.store.blobs import Store
from builder.formats.layers import bounds, conda, conda_prefix
from tests.support.condapackage import (
    PLACEHOLDER,
    Extension,
    Member,
    fetched,
    pack,
    part_of,
    tar_of,
    write_conda,
)
from tests.support.hostile import CONDAS, Hostile, assert_handled, layer_of


@pytest.mark.parametrize("case", CONDAS, ids=lambda case: case.name)
def test_conda(case: Hostile, tmp_path: Path) -> None:
    """The package is refused by name in one line, or all its files lie inside the prefix."""
    assert_handled(case, tmp_path, most=9000)
    if case.refused:
        assert not any((tmp_path / "spool").glob("*"))


def refused(path: Path, tmp_path: Path, message: str) -> None:
    with pytest.raises(LayerError, match=message) as caught:
        layer_of(fetched(path), tmp_path, Store(tmp_path / "store"))
    assert not any((tmp_path / "spool").glob("*")), caught.value


def with_paths(path: Path, change: Any) -> Path:
    """Writes a package again with another ``paths.json``: ``change`` is called with its list."""
    with tarfile.open(fileobj=io.BytesIO(part_of(path, "info"))) as tar:
        texts = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    paths = json.loads(texts["info/paths.json"])
    change(paths["paths"])
    texts["info/paths.json"] = json.dumps(paths).encode()
    write_conda(path, tar_of([Member(name, data) for name, data in texts.items()]), part_of(path, "pkg"))
    return path


@pytest.mark.parametrize("extension", [".conda", ".tar.bz2"])
def test_disk_bomb(tmp_path: Path, extension: Extension, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that unpacks to more than it declares is stopped while it is unpacked."""
    monkeypatch.setattr(conda, "_UNDECLARED", 1 << 20)
    big = Member("share/big", bytes(3 << 20), listed=False)
    refused(pack(tmp_path, "bomb", [big], extension=extension), tmp_path, "unpacks to more than")


@pytest.mark.parametrize("prefix", ["", "text", "binary"])
@pytest.mark.parametrize("size", [0, 100, 2 << 20])
def test_wrong_content(tmp_path: Path, prefix: Any, size: int) -> None:
    """A file whose sha256 is not that of paths.json is refused, also if its prefix is replaced."""
    data = (PLACEHOLDER.encode() + b"/lib\0").ljust(size, b"x")[:size]
    path = pack(tmp_path, "thing", [Member("lib/a", data, prefix=prefix)])
    layer_of(fetched(path), tmp_path, Store(tmp_path / "store"))

    def lie(paths: list[dict[str, Any]]) -> None:
        paths[0]["sha256"] = hashlib.sha256(b"other").hexdigest()

    refused(with_paths(path, lie), tmp_path, "lib/a.*sha256")


def replaced_part(path: Path, data: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    """Writes a ``.conda`` again with other bytes as its files' part."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, old in parts.items():
            archive.writestr(name, data if name.startswith("pkg-") else old)
    return path


def test_zstd_window(tmp_path: Path) -> None:
    """A frame that needs a window of 2 GiB is refused; nothing of that size is allocated."""
    path = pack(tmp_path, "thing", [Member("lib/a", b"x")])
    frame = zstandard.FRAME_HEADER + bytes([0, 21 << 3]) + bytes([1, 0, 0])  # window 2^31, an empty block
    refused(replaced_part(path, frame), tmp_path, "cannot be read: .*memory")


def test_zstd_content_size(tmp_path: Path) -> None:
    """A frame's own content size is not trusted: nothing is allocated for it."""
    path = pack(tmp_path, "thing", [Member("lib/a", b"x")])
    # a frame of one segment needs no window, but a content size: 2^60
    frame = zstandard.FRAME_HEADER + bytes([0xE0]) + struct.pack("<Q", 1 << 60) + bytes([1, 0, 0])
    refused(replaced_part(path, frame), tmp_path, "cannot be read")


def test_other_compression(tmp_path: Path) -> None:
    """A part that is compressed once more by bzip2 or lzma is refused: zipfile has no bound for these."""
    path = pack(tmp_path, "thing", [Member("lib/a", b"x")])
    refused(replaced_part(path, b"x" * 99, zipfile.ZIP_BZIP2), tmp_path, "compressed by method 12")


def test_bz2_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .tar.bz2 of zeros ends at the first block, and one of endless folders at the bound."""
    path = tmp_path / "linux-64" / "thing-1.0-0.tar.bz2"
    path.parent.mkdir()
    path.write_bytes(bz2.compress(bytes(5 << 20)))
    refused(path, tmp_path, "no info/index.json")
    monkeypatch.setattr(bounds, "MAX_MEMBERS", 50)
    many = pack(tmp_path, "many", [Member(f"x/{i}", kind="dir", listed=False) for i in range(60)])
    refused(many, tmp_path, "more than 50 members")


def test_long_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary file with a prefix and an endless C string is refused: strings are held in memory."""
    monkeypatch.setattr(conda_prefix, "MAX_STRING", 1 << 20)
    path = pack(tmp_path, "thing", [Member("lib/a", b"x" * (3 << 20), prefix="binary")])
    refused(path, tmp_path, "C string of more than 1048576 bytes")
