"""Writes layer blobs: a tar stream that is hashed, compressed, and hashed again.

gzip (RFC 1952) allows several members in one file, and every reader concatenates their contents.
The files in a wheel are raw deflate streams (RFC 1951) already, which is what a gzip member holds
between its header and its trailer. So each larger file of a wheel is *spliced*: its stream is
copied into the layer as a separate gzip member, and is not compressed again.

    the tar     | header a, a, header b, header c |      content of c       | padding, header d, d, ... |
                |                                 |                         |                           |
    the blob    | header  deflate  CRC+length     | header  STREAM  CRC+len | header  deflate  CRC+len  |
                '---- gzip member, <= 1 MiB of ---'---- spliced member: ----'---- gzip member ... ------'
                      tar, compressed here             STREAM is a copy of
                                                       bytes in the wheel

A spliced stream is still inflated once, because the tar's hash (``diff_id``) needs its content;
this also checks its CRC.

Everything else is compressed in fixed blocks of 1 MiB, each a member (gzip) or a frame (zstd), so
the bytes are the same on any machine with any number of cores. The versions of libdeflate and
libzstd are pinned, because their output is part of the digest. The output of ISA-L and zlib depends
on processor and version, so they are used to inflate only.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import deflate
import zstandard
from isal import isal_zlib

from builder.core.errors import LayerError
from builder.core.model import OCI_LAYER_GZIP, OCI_LAYER_ZSTD, Compression
from builder.core.parallel import Advance
from builder.core.store.blobs import BlobWriter

from .content import STEP, read_steps
from .entry import Deflated, Entry, Range
from .libraries import LayerLibraries
from .tar import END, header, padding, with_parents

MEDIA_TYPES: Final = {"gzip": OCI_LAYER_GZIP, "zstd": OCI_LAYER_ZSTD}
#: Bytes of tar in a gzip member or zstd frame.
BLOCK: Final = 1 << 20
#: Deflated files of at least this size (bytes, inflated) are spliced. Smaller ones are smaller if
#: compressed with their headers.
SPLICE_FROM: Final = 32 << 10
GZIP_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3
_GZIP_HEADER: Final = (
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, unknown system
)


def codec_name(compression: Compression) -> str:
    """Return the name of the compressor and its options, a part of every cache key."""
    if compression == "gzip":
        return f"gzip-libdeflate-{deflate.__version__}-{GZIP_LEVEL}-{BLOCK}-splice-{SPLICE_FROM}-v1"
    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    return f"zstd-{version}-{ZSTD_LEVEL}-{BLOCK}-v1"


def gzip_member(data: bytes | bytearray) -> bytes:
    """Return a complete gzip member with the content ``data``, without name and time."""
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
        self, out: BlobWriter, compression: Compression, mtime: int, advance: Advance
    ) -> None:
        if not 0 <= mtime < 8**11:
            hint = "set SOURCE_DATE_EPOCH to seconds since 1970, or unset it"
            raise LayerError(f"a tar cannot hold the time {mtime}", hint)
        self.blob = _CompressedTar(out, compression, advance)
        """What is written so far."""
        self.libraries = LayerLibraries()
        """The libraries in it."""
        self._splice = compression == "gzip"
        self._mtime = mtime

    def write(self, entries: Iterable[Entry]) -> None:
        """Write all entries, parent directories first, and the end of the tar.

        Raises:
            LayerError: a path is unsafe, or content does not match its size or checksum.
            SpaceError: the disk is full.
        """
        try:
            with _OpenFile() as source:
                for entry in with_parents(entries):
                    self.blob.write(header(entry, self._mtime))
                    self.libraries.add(entry)
                    if entry.kind == "file" and entry.size:
                        self._content(entry, source)
            self.blob.write(END)
            self.blob.finish()
        finally:
            if isinstance(entries, Generator):
                entries.close()  # removes the temporary file of a conda package also after an error

    def _content(self, entry: Entry, source: _OpenFile) -> None:
        content = entry.content
        fd = source.fd(content.source) if isinstance(content, Deflated | Range) else -1
        if self._splice and isinstance(content, Deflated) and entry.size >= SPLICE_FROM:
            self.blob.flush()
            self.blob.put(_GZIP_HEADER)
            steps = read_steps(entry, fd, copy=self.blob.put)
            for data in self.libraries.passing(entry, fd, steps):
                self.blob.account(data)
            self.blob.put(_gzip_trailer(content.crc32, entry.size))
        else:
            for data in self.libraries.passing(entry, fd, read_steps(entry, fd)):
                self.blob.write(data)
        if pad := padding(entry.size):
            self.blob.write(bytes(pad))


class _CompressedTar:
    """The blob of a layer: hashes tar bytes, and compresses them in blocks of 1 MiB."""

    def __init__(self, out: BlobWriter, compression: Compression, advance: Advance) -> None:
        self._out = out
        self._gzip = compression == "gzip"
        self._zstd = zstandard.ZstdCompressor(
            level=ZSTD_LEVEL, write_checksum=False, write_content_size=True
        )
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
        """Add tar bytes; they are compressed here."""
        self._pending += data
        if len(self._pending) >= BLOCK:
            whole = len(self._pending) // BLOCK * BLOCK
            for start in range(0, whole, BLOCK):
                self._compress(self._pending[start : start + BLOCK])
            del self._pending[:whole]

    def flush(self) -> None:
        """Compress what is pending, so that the next member can be a spliced one."""
        if self._pending:
            self._compress(self._pending)
            self._pending = bytearray()

    def finish(self) -> None:
        """Write everything that is still in memory."""
        self.flush()
        self.put(b"", at_once=True)

    def account(self, data: bytes | bytearray) -> None:
        """Hash and count tar bytes whose compressed form is written with :meth:`put`."""
        self._hash.update(data)
        self.size += len(data)
        self._advance(len(data))

    def put(self, data: bytes, at_once: bool = False) -> None:
        """Add compressed bytes.

        Small amounts are collected, because the store hashes each write on its own.
        """
        self._packed += data
        if at_once or len(self._packed) >= STEP:
            self._out.write(memoryview(self._packed))
            self._packed = bytearray()

    def _compress(self, block: bytearray) -> None:
        self.account(block)
        packed = gzip_member(block) if self._gzip else self._zstd.compress(block)
        self.put(packed, at_once=len(block) == BLOCK)


class _OpenFile(ExitStack):
    """The file that content is read from: an archive, or the tar of the current package."""

    _path: Path | None = None
    _fd = -1

    def fd(self, path: Path) -> int:
        """Return the descriptor of a file; the one before is closed."""
        if path != self._path:
            self.close()
            self._path, self._fd = path, self.enter_context(path.open("rb", buffering=0)).fileno()
        return self._fd
