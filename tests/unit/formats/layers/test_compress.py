"""Layer blobs: content comes back unchanged, hashes are right, and the bytes do not depend on the machine."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.core.errors import LayerError, SpaceError
from builder.core.model import Compression, Layer
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.compress import BLOCK, SPLICE_FROM, LayerWriter
from builder.formats.layers.entry import Content, Deflated, Entry, Inline, Range
from tests.support.wheels import noise, tar_bytes, tree

EPOCH = 315532800


def raw_deflate(data: bytes) -> bytes:
    c = zlib.compressobj(6, wbits=-15)
    return c.compress(data) + c.flush()


class Sources:
    """Puts contents into one file, as an archive holds them, and refers to them there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"head")

    def _append(self, data: bytes) -> int:
        with self.path.open("ab") as f:
            offset = f.tell()
            f.write(data + b"tail")
        return offset

    def deflated(self, data: bytes) -> Deflated:
        raw = raw_deflate(data)
        return Deflated(self.path, self._append(raw), len(raw), zlib.crc32(data))

    def plain(self, data: bytes) -> Range:
        return Range(self.path, self._append(data))


def file(path: str, content: Content, size: int) -> Entry:
    return Entry(path, "file", 0o644, size, content=content)


def layer(store: Store, entries: list[Entry], compression: Compression = "gzip") -> Layer:
    own = Settings(store.root, store.root, 1, epoch=EPOCH)
    return make_layer(entries, "", Workspace(own, store), compression=compression)


sizes = st.one_of(
    st.integers(0, 2000),
    st.sampled_from(
        [SPLICE_FROM - 1, SPLICE_FROM, 65535, 65536, 65537, BLOCK - 512, BLOCK, BLOCK + 1, 3 * BLOCK]
    ),
)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(st.tuples(st.sampled_from(["inline", "deflated", "range"]), sizes), max_size=8))
def test_content_comes_back(tmp_path: Path, compression: Compression, content: list[tuple[str, int]]) -> None:
    """A layer of any contents, given in any form, unpacks to the same contents, and its digests are right."""
    store, sources = Store(tmp_path / "store"), Sources(tmp_path / "archive")
    expected, entries = {}, []
    for i, (kind, size) in enumerate(content):
        data = noise(str(i), size)
        given_as: dict[str, Callable[[bytes], Content]] = {
            "inline": Inline,
            "deflated": sources.deflated,
            "range": sources.plain,
        }
        entries.append(file(f"d/f{i}", given_as[kind](data), size))
        expected[f"d/f{i}"] = ("file", 0o644, data)
    made = layer(store, entries, compression)
    assert tree([made]) == expected
    tar = tar_bytes(made)
    assert made.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}" and made.unpacked == len(tar)
    assert made.path is not None and made.descriptor.size == made.path.stat().st_size
    assert made.descriptor.digest == sha256_file(made.path)
    assert made.descriptor.media_type == f"application/vnd.oci.image.layer.v1.tar+{compression}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_format_is_stable(store: Store, tmp_path: Path) -> None:
    """These digests change with the format only. Then codec_name or FORMAT must change too, and
    every image is published again.
    """
    sources = Sources(tmp_path / "a")
    entries = [
        file("a/inline", Inline(noise("1", 5000)), 5000),
        file("a/small", sources.plain(noise("2", 300)), 300),
        Entry("a/link", "symlink", 0o777, target="inline"),
        Entry("a/hard", "hardlink", 0o644, target="a/inline"),
        file("a/" + "long" * 60, Inline(b"x"), 1),
    ]
    gzip, zstd = layer(store, entries), layer(store, entries, "zstd")
    assert (
        gzip.diff_id
        == zstd.diff_id
        == "sha256:ca0594739dc046a0906732c4ee5f5e828bbd11c65cce7f6b562d672b35a17875"
    )
    assert (gzip.descriptor.digest, zstd.descriptor.digest) == (
        "sha256:76470066425e5cf02a68367a05d23cbfc5b6d16df15391a85619518db62ead11",
        "sha256:dd0a415da5ce094ddcd9daa5ad083eb1bbca1313f45a5c817f8930c9643a9d32",
    )


@pytest.mark.parametrize("size", [100, SPLICE_FROM, 300_000])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("harm", ["bit", "crc", "longer", "shorter", "tail", "end"])
def test_damaged_content_is_refused(
    store: Store, tmp_path: Path, size: int, compression: Compression, harm: str
) -> None:
    """Content that does not match its size or checksum ends the build, and leaves no blob."""
    sources, data = Sources(tmp_path / "a"), noise("x", size)
    content = sources.deflated(data)
    if harm == "bit":
        whole = bytearray(sources.path.read_bytes())
        whole[content.offset + content.compressed // 2] ^= 0x10
        sources.path.write_bytes(whole)
    elif harm == "crc":
        content = replace(content, crc32=content.crc32 ^ 1)
    elif harm == "longer":
        size += 1
    elif harm == "shorter":
        size -= 1
    elif harm == "tail":
        content = replace(content, compressed=content.compressed + 2)
    else:
        os.truncate(sources.path, content.offset + content.compressed - 10)
    with pytest.raises(LayerError, match="^f: (damaged in its archive|its archive ends too early)"):
        layer(store, [file("f", content, size)], compression)
    assert not list(store.tmp.iterdir()) and not store.blobs.exists()


def test_zip_bomb(store: Store, tmp_path: Path) -> None:
    """A stream with more content than its entry declares is not inflated to its end."""
    bomb = bytes(64 << 20)
    content = Sources(tmp_path / "a").deflated(bomb)
    for size in (10, SPLICE_FROM):
        with pytest.raises(LayerError, match="damaged"):
            layer(store, [file("f", content, size)])


def test_full_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises SpaceError, and no temporary file remains."""

    def full(self: object, data: object) -> int:
        raise OSError(28, "No space left on device")

    with store.writer() as out:
        out._file.close()
        out._file = type("Full", (io.BytesIO,), {"write": full})()
        with pytest.raises(SpaceError, match="no space left"):
            LayerWriter(out, "gzip", EPOCH, lambda n: None).write(
                [file("f", Inline(noise("x", 3 * BLOCK)), 3 * BLOCK)]
            )
    assert not list(store.tmp.iterdir())
