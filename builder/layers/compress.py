"""Writes layer blobs: a tar stream that is hashed, compressed, and hashed again.

gzip (RFC 1952) allows several members in one file, and every reader concatenates their contents. The files in
a wheel are raw deflate streams (RFC 1951) already, which is what a gzip member holds between its header and
its trailer. So each larger file of a wheel is *spliced*: its stream is copied into the layer as a separate
gzip member, and is not compressed again.

    the tar     | header a, a, header b, header c |      content of c       | padding, header d, d, ... |
                |                                 |                         |                           |
    the blob    | header  deflate  CRC+length     | header  STREAM  CRC+len | header  deflate  CRC+len  |
                '---- gzip member, <= 1 MiB of ---'---- spliced member: ----'---- gzip member ... ------'
                      tar, compressed here             STREAM is a copy of
                                                       bytes in the wheel

A spliced stream is still inflated once, because the tar's hash (``diff_id``) needs its content; this also
checks its CRC.

Everything else is compressed in fixed blocks of 1 MiB, each a member (gzip) or a frame (zstd), so the bytes
are the same on any machine with any number of cores. The versions of libdeflate and libzstd are pinned,
because their output is part of the digest. The output of ISA-L and zlib depends on processor and version, so
they are used to inflate only.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Generator, Iterable
from typing import Final, cast

import deflate
import zstandard
from isal import isal_zlib

from builder.config.recipe import Compression
from builder.errors import LayerError
from builder.layers.entry import Deflated, Entry, Inline, Range
from builder.layers.tar import END, header, padding, with_parents
from builder.model import OCI_LAYER_GZIP, OCI_LAYER_ZSTD
from builder.store.blobs import BlobWriter
from builder.text import one_line

MEDIA_TYPES: Final = {"gzip": OCI_LAYER_GZIP, "zstd": OCI_LAYER_ZSTD}
#: Bytes of tar in a gzip member or zstd frame.
BLOCK: Final = 1 << 20
#: Deflated files of at least this size (bytes, inflated) are spliced. Smaller ones are smaller if compressed
#: with their headers.
SPLICE_FROM: Final = 32 << 10
GZIP_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3
#: Bytes of a deflate stream that are read at once. They may inflate a thousandfold, so a thread holds at most
#: 64 MiB.
_STEP: Final = 64 << 10
_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, unknown system
_BUG = "this is a bug in builder; please report it"
_ISAL_ERROR = cast("type[Exception]", isal_zlib.error)  # isal's type stub declares an instance


def codec_name(compression: Compression) -> str:
    """Returns what a layer's bytes depend on besides its content; it is part of every cache key."""
    if compression == "gzip":
        return f"gzip-libdeflate-{deflate.__version__}-{GZIP_LEVEL}-{BLOCK}-splice-{SPLICE_FROM}-v1"
    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    return f"zstd-{version}-{ZSTD_LEVEL}-{BLOCK}-v1"


def gzip_member(data: bytes | bytearray) -> bytes:
    """Returns a complete gzip member with the content ``data``, without name and time."""
    body = deflate.deflate_compress(data, GZIP_LEVEL)
    return b"".join((_GZIP_HEADER, body, _gzip_trailer(isal_zlib.crc32(data), len(data))))


def _gzip_trailer(crc32: int, size: int) -> bytes:
    return struct.pack("<II", crc32, size & 0xFFFFFFFF)


class LayerWriter:
    """Writes entries into a blob of the store as a compressed tar.

    Args:
        out: the blob.
        compression: ``gzip`` or ``zstd``.
        mtime: time of all entries, seconds since 1970.
        advance: is called with the number of tar bytes written, block by block.

    Raises:
        LayerError: a tar cannot hold ``mtime``.
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
        self._blob = _CompressedTar(out, compression, advance)
        self._splice = compression == "gzip"
        self._mtime = mtime
        self._sources = _OpenFile()

    @property
    def diff_id(self) -> str:
        """Digest of the uncompressed tar."""
        return self._blob.diff_id

    @property
    def size(self) -> int:
        """Bytes of the uncompressed tar so far."""
        return self._blob.size

    def write(self, entries: Iterable[Entry]) -> None:
        """Writes all entries, parent directories first, and the end of the tar.

        Raises:
            LayerError: a path is unsafe, or content does not match its size or checksum.
            SpaceError: the disk is full.
        """
        try:
            for entry in with_parents(entries):
                self._blob.write(header(entry, self._mtime))
                if entry.kind == "file" and entry.size:
                    self._content(entry)
            self._blob.write(END)
            self._blob.finish()
        finally:
            self._sources.close()
            if isinstance(entries, Generator):
                entries.close()  # removes the temporary file of a conda package also after an error

    def _content(self, entry: Entry) -> None:
        content = entry.content
        if isinstance(content, Inline):
            if len(content.data) != entry.size:
                raise LayerError(
                    f"{entry.path}: content has {len(content.data)} bytes, not {entry.size}", _BUG
                )
            self._blob.write(content.data)
        elif isinstance(content, Range):
            self._range(entry, content)
        elif isinstance(content, Deflated):
            self._deflated(entry, content)
        else:
            raise LayerError(f"{entry.path}: no content", _BUG)
        if pad := padding(entry.size):
            self._blob.write(bytes(pad))

    def _range(self, entry: Entry, content: Range) -> None:
        fd = self._sources.fd(str(content.source))
        at, left = content.offset, entry.size
        crc = 0
        sha256 = hashlib.sha256() if content.sha256 else None
        while left:
            data = os.pread(fd, min(left, BLOCK), at)
            if not data:
                raise _short(entry)
            if content.crc32 is not None:
                crc = isal_zlib.crc32(data, crc)
            if sha256 is not None:
                sha256.update(data)
            self._blob.write(data)
            at += len(data)
            left -= len(data)
        if content.crc32 is not None and crc != content.crc32:
            raise _damaged(entry, "checksum")
        if sha256 is not None and sha256.hexdigest() != content.sha256:
            raise _damaged(entry, f"its sha256 is {sha256.hexdigest()}, the package lists {content.sha256}")

    def _deflated(self, entry: Entry, content: Deflated) -> None:
        fd = self._sources.fd(str(content.source))
        if self._splice and entry.size >= SPLICE_FROM:
            self._blob.flush()
            self._blob.put(_GZIP_HEADER)
            _inflate_stream(entry, content, fd, copy=self._blob.put, sink=self._blob.account)
            self._blob.put(_gzip_trailer(content.crc32, entry.size))
        elif entry.size <= _STEP and content.compressed <= _STEP:
            self._blob.write(_inflate(entry, content, fd))
        else:
            _inflate_stream(entry, content, fd, copy=lambda raw: None, sink=self._blob.write)


class _CompressedTar:
    """The blob of a layer: takes tar bytes, hashes them and writes them compressed, in blocks of 1 MiB."""

    def __init__(self, out: BlobWriter, compression: Compression, advance: Callable[[int], None]) -> None:
        self._out = out
        self._gzip = compression == "gzip"
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False, write_content_size=True)
        self._advance = advance
        self._hash = hashlib.sha256()
        self._pending = bytearray()  # tar that is not compressed yet
        self._packed = bytearray()  # compressed bytes that are not written yet
        self.size = 0
        """Bytes of the tar so far."""

    @property
    def diff_id(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def write(self, data: bytes) -> None:
        """Adds tar bytes; they are compressed here."""
        self._pending += data
        if len(self._pending) >= BLOCK:
            whole = len(self._pending) // BLOCK * BLOCK
            for start in range(0, whole, BLOCK):
                self._compress(self._pending[start : start + BLOCK])
            del self._pending[:whole]

    def flush(self) -> None:
        """Compresses what is pending, so that the next member can be a spliced one."""
        if self._pending:
            self._compress(self._pending)
            self._pending = bytearray()

    def finish(self) -> None:
        """Writes everything that is still in memory."""
        self.flush()
        self.put(b"", at_once=True)

    def account(self, data: bytes | bytearray) -> None:
        """Hashes and counts tar bytes. Only for bytes whose compressed form is written with :meth:`put`."""
        self._hash.update(data)
        self.size += len(data)
        self._advance(len(data))

    def put(self, data: bytes, at_once: bool = False) -> None:
        """Adds compressed bytes.

        Small amounts are collected, because the store hashes each write on its own.
        """
        self._packed += data
        if at_once or len(self._packed) >= _STEP:
            self._out.write(memoryview(self._packed))
            self._packed = bytearray()

    def _compress(self, block: bytearray) -> None:
        self.account(block)
        packed = gzip_member(block) if self._gzip else self._zstd.compress(block)
        self.put(packed, at_once=len(block) == BLOCK)


class _OpenFile:
    """The file that content is read from: the archive or the unpacked tar of the current package."""

    def __init__(self) -> None:
        self._path, self._fd = "", -1

    def fd(self, path: str) -> int:
        if path != self._path:
            self.close()
            self._path, self._fd = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._path, self._fd = "", -1


def _inflate_stream(
    entry: Entry,
    content: Deflated,
    fd: int,
    *,
    copy: Callable[[bytes], object],
    sink: Callable[[bytes], object],
) -> None:
    """Inflates a stream step by step and checks its length and CRC.

    Args:
        entry: the member that the stream belongs to.
        content: where the stream is.
        fd: descriptor of ``content.source``.
        copy: is called with the stream's own bytes.
        sink: is called with the inflated bytes.
    """
    inflate = isal_zlib.decompressobj(-15)
    crc, size = 0, 0
    at, left = content.offset, content.compressed
    while left:
        raw = os.pread(fd, min(left, _STEP), at)
        if not raw:
            raise _short(entry)
        copy(raw)
        at += len(raw)
        left -= len(raw)
        try:
            data = inflate.decompress(raw)
        except _ISAL_ERROR as e:
            raise _damaged(entry, str(e)) from None
        crc = isal_zlib.crc32(data, crc)
        size += len(data)
        if size > entry.size:  # a zip bomb, for example
            break
        sink(data)
    if not inflate.eof or inflate.unused_data or size != entry.size or crc != content.crc32:
        raise _damaged(entry, "checksum or length")


def _inflate(entry: Entry, content: Deflated, fd: int) -> bytes:
    """Returns the content of a small stream."""
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
        f"{one_line(entry.path)}: its archive ends too early",
        "the archive changed while it was read: build again",
    )


def _damaged(entry: Entry, why: str) -> LayerError:
    return LayerError(
        f"{one_line(entry.path)}: damaged in its archive ({why})",
        "fetch the package again (builder cache prune), or lock another version",
    )
