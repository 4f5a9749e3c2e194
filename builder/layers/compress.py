"""Layer blobs: a tar stream, hashed once, compressed once, hashed once more.

gzip (RFC 1952) allows any number of members in one file. A wheel's files are raw deflate streams already, so each larger one is
put into the layer as a gzip member of its own, not compressed again; it is inflated once, for the tar's hash. Everything else is
compressed in fixed blocks of 1 MiB, each a member (gzip) or a frame (zstd): the same bytes on any machine and any number of
cores. libdeflate and libzstd are pinned, because their output is part of the digest; ISA-L and zlib, whose output depends on
processor and version, only ever inflate here.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable
from typing import Final, cast

import deflate
import zstandard
from isal import isal_zlib

from builder.config.recipe import Compression
from builder.errors import LayerError
from builder.layers.entry import Deflated, Entry, Inline, Range
from builder.layers.tar import END, header, padding, with_parents
from builder.model import OCI_LAYER_GZIP, OCI_LAYER_ZSTD, Descriptor, Layer
from builder.store.blobs import BlobWriter, Store

MEDIA_TYPES: Final = {"gzip": OCI_LAYER_GZIP, "zstd": OCI_LAYER_ZSTD}
BLOCK: Final = 1 << 20
#: Deflated files from this size on (bytes, inflated) are spliced; smaller ones compress better together with their headers.
SPLICE_FROM: Final = 32 << 10
GZIP_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3
#: Bytes of a deflate stream read at once. They may inflate a thousandfold: this bounds what a thread holds to 64 MiB.
_STEP: Final = 64 << 10
_OPEN_FILES: Final = 16
_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, system unknown
_REPORT = "this is a fault of builder: report it"
_ISAL_ERROR = cast("type[Exception]", isal_zlib.error)  # its stub says it is an instance


def codec_name(compression: Compression) -> str:
    """What a layer's bytes depend on besides its content; part of every cache key."""
    if compression == "gzip":
        return f"gzip-libdeflate-{deflate.__version__}-{GZIP_LEVEL}-{BLOCK}-splice-{SPLICE_FROM}-v1"
    return f"zstd-{'.'.join(map(str, zstandard.ZSTD_VERSION))}-{ZSTD_LEVEL}-{BLOCK}-v1"


def gzip_member(data: bytes | bytearray) -> bytes:
    """One whole gzip member holding ``data``: no name, no time."""
    body = deflate.deflate_compress(data, GZIP_LEVEL)
    return b"".join((_GZIP_HEADER, body, struct.pack("<II", isal_zlib.crc32(data), len(data) & 0xFFFFFFFF)))


class LayerWriter:
    """Writes entries into a blob of the store as a compressed tar.

    Args:
        out: the blob.
        compression: ``gzip`` or ``zstd``.
        mtime: the time of all entries, seconds since 1970.
        advance: told the bytes of tar written, now and then.
    """

    def __init__(
        self,
        out: BlobWriter,
        compression: Compression,
        mtime: int,
        advance: Callable[[int], None] = lambda n: None,
    ) -> None:
        if not 0 <= mtime < 8**11:
            raise LayerError(
                f"a tar cannot hold the time {mtime}",
                "set SOURCE_DATE_EPOCH to seconds since 1970, or unset it",
            )
        self._out = out
        self._gzip = compression == "gzip"
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False, write_content_size=True)
        self._mtime = mtime
        self._advance = advance
        self._hash = hashlib.sha256()
        self._pending = bytearray()  # tar not compressed yet
        self._packed = bytearray()  # small compressed pieces not written yet
        self._files: dict[str, int] = {}
        self.size = 0
        """Bytes of the tar so far."""

    def write(self, entries: Iterable[Entry]) -> None:
        """Writes all entries, parents first, and the end of the tar.

        Raises:
            LayerError: unsafe paths, or content that is not what its index says.
            SpaceError: the disk is full.
        """
        try:
            for entry in with_parents(entries):
                self._plain(header(entry, self._mtime))
                if entry.kind == "file" and entry.size:
                    self._content(entry)
            self._plain(END)
            self._flush()
            self._put(b"", at_once=True)
        finally:
            for fd in self._files.values():
                os.close(fd)
            self._files.clear()

    @property
    def diff_id(self) -> str:
        """The digest of the uncompressed tar."""
        return f"sha256:{self._hash.hexdigest()}"

    def _content(self, entry: Entry) -> None:
        content = entry.content
        if isinstance(content, Inline):
            if len(content.data) != entry.size:
                raise LayerError(f"{entry.path}: {len(content.data)} bytes, not {entry.size}", _REPORT)
            self._plain(content.data)
        elif isinstance(content, Range):
            self._range(entry, content)
        elif isinstance(content, Deflated):
            self._deflated(entry, content)
        else:
            raise LayerError(f"{entry.path}: no content", _REPORT)
        if pad := padding(entry.size):
            self._plain(bytes(pad))

    def _plain(self, data: bytes) -> None:
        """Tar bytes that are to be compressed here."""
        self._pending += data
        if len(self._pending) >= BLOCK:
            whole = len(self._pending) // BLOCK * BLOCK
            for start in range(0, whole, BLOCK):
                self._emit(self._pending[start : start + BLOCK])
            del self._pending[:whole]

    def _flush(self) -> None:
        if self._pending:
            self._emit(self._pending)
            self._pending = bytearray()

    def _emit(self, block: bytearray) -> None:
        self._hashed(block)
        self._put(
            gzip_member(block) if self._gzip else self._zstd.compress(block), at_once=len(block) == BLOCK
        )

    def _hashed(self, data: bytes | bytearray) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._advance(len(data))

    def _put(self, data: bytes, at_once: bool = False) -> None:
        """Compressed bytes; small pieces are gathered, as every write is hashed and has its price."""
        self._packed += data
        if at_once or len(self._packed) >= _STEP:
            self._out.write(memoryview(self._packed))
            self._packed = bytearray()

    def _fd(self, path: str) -> int:
        if path not in self._files:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._files[path]

    def _range(self, entry: Entry, content: Range) -> None:
        fd, at, left = self._fd(str(content.source)), content.offset, entry.size
        while left:
            data = os.pread(fd, min(left, BLOCK), at)
            if not data:
                raise _short(entry)
            self._plain(data)
            at += len(data)
            left -= len(data)

    def _deflated(self, entry: Entry, content: Deflated) -> None:
        fd = self._fd(str(content.source))
        if self._gzip and entry.size >= SPLICE_FROM:
            self._flush()
            self._put(_GZIP_HEADER)
            self._stream(entry, content, fd, self._put, self._hashed)
            self._put(struct.pack("<II", content.crc32, entry.size & 0xFFFFFFFF))
        elif entry.size <= _STEP and content.compressed <= _STEP:
            self._plain(_inflate(entry, content, fd))
        else:
            self._stream(entry, content, fd, lambda raw: None, self._plain)

    def _stream(
        self,
        entry: Entry,
        content: Deflated,
        fd: int,
        raw_sink: Callable[[bytes], object],
        sink: Callable[[bytes], object],
    ) -> None:
        inflate = isal_zlib.decompressobj(-15)
        crc, size, at, left = 0, 0, content.offset, content.compressed
        while left:
            raw = os.pread(fd, min(left, _STEP), at)
            if not raw:
                raise _short(entry)
            raw_sink(raw)
            at += len(raw)
            left -= len(raw)
            try:
                data = inflate.decompress(raw)
            except _ISAL_ERROR as e:
                raise _damaged(entry, str(e)) from None
            crc = isal_zlib.crc32(data, crc)
            size += len(data)
            if size > entry.size:
                break
            sink(data)
        if not inflate.eof or inflate.unused_data or size != entry.size or crc != content.crc32:
            raise _damaged(entry, "checksum or length")


def _inflate(entry: Entry, content: Deflated, fd: int) -> bytes:
    raw = os.pread(fd, content.compressed, content.offset)
    try:
        data: bytes = isal_zlib.decompress(raw, -15, entry.size)
    except _ISAL_ERROR as e:
        raise _damaged(entry, str(e)) from None
    if len(data) != entry.size or isal_zlib.crc32(data) != content.crc32:
        raise _damaged(entry, "checksum or length")
    return data


def _short(entry: Entry) -> LayerError:
    return LayerError(
        f"{entry.path}: its archive ends too early", "the archive changed while it was read: build again"
    )


def _damaged(entry: Entry, why: str) -> LayerError:
    return LayerError(
        f"{entry.path}: damaged in its archive ({why})",
        "fetch the package again (builder cache prune), or lock another version",
    )


def write_layer(
    store: Store,
    entries: Iterable[Entry],
    *,
    compression: Compression,
    mtime: int,
    title: str = "",
    packages: tuple[str, ...] = (),
    annotations: dict[str, str] | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> Layer:
    """Writes one layer into the store; ``annotations`` go into its descriptor."""
    with store.writer() as out:
        writer = LayerWriter(out, compression, mtime, advance)
        writer.write(entries)
        digest, size = out.commit()
    descriptor = Descriptor(MEDIA_TYPES[compression], digest, size, annotations or {})
    return Layer(
        descriptor, writer.diff_id, store.path(digest), title=title, packages=packages, unpacked=writer.size
    )
