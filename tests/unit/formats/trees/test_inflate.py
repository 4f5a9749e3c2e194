"""Compressed layers: what a frame states about itself is not trusted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import zstandard

from builder.core.errors import ImageError
from builder.formats.trees.inflate import inflate

_EMPTY_BLOCK = bytes([1, 0, 0])


@pytest.mark.parametrize(
    "header",
    [bytes([0x00, 21 << 3]), bytes([0xE0]) + struct.pack("<Q", 1 << 60)],
    ids=["a window of 2 GiB", "a content of 2^60 bytes"],
)
def test_zstd_frame(tmp_path: Path, header: bytes) -> None:
    """A zstd frame that wants much memory is refused, and nothing is allocated for it."""
    path = tmp_path / "layer"
    path.write_bytes(zstandard.FRAME_HEADER + header + _EMPTY_BLOCK)
    with pytest.raises(ImageError, match="layer is damaged"):
        list(inflate(path))


@pytest.mark.parametrize("kind", [0x50, 0x5F])
def test_frame_to_skip(tmp_path: Path, kind: int) -> None:
    """A zstd file may have frames that readers skip, also as the first one (RFC 8878)."""
    skipped = bytes([kind]) + b"\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
    path = tmp_path / "layer"
    compress = zstandard.ZstdCompressor().compress
    path.write_bytes(skipped + compress(b"1") + skipped + compress(b"2") + skipped)
    assert b"".join(inflate(path)) == b"12"
