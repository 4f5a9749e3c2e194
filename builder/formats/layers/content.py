"""Reads the content of entries from archives, in steps, and checks it: length, CRC, sha256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Final, cast

from isal import isal_zlib

from builder.core.errors import LayerError
from builder.core.store.files import CHUNK
from builder.core.text import one_line

from .entry import Deflated, Entry, Inline, Range

#: Bytes of a deflate stream that are read at once. They may inflate a thousandfold, so a thread
#: holds at most 64 MiB.
STEP: Final = 64 << 10
#: Is called with bytes as they pass.
Consumer = Callable[[bytes], object]
_ISAL_ERROR = cast("type[Exception]", isal_zlib.error)  # isal's type stub declares an instance
_BUG = "this is a bug in builder; please report it"


def read_whole(entry: Entry) -> bytes:
    """Return the content of a regular file; only for small ones.

    Raises:
        LayerError: the archive is damaged.
    """
    content = entry.content
    if content is None or isinstance(content, Inline):
        return b"" if content is None else content.data
    with content.source.open("rb") as file:
        return b"".join(read_steps(entry, file.fileno()))


def read_steps(entry: Entry, fd: int, copy: Consumer = lambda data: None) -> Iterator[bytes]:
    """Yield the content of a regular file.

    Args:
        entry: the file.
        fd: descriptor of its content's ``source``.
        copy: is called with the bytes of a deflate stream before they are inflated.

    Raises:
        LayerError: content does not match its size or checksum.
    """
    content = entry.content
    if isinstance(content, Deflated):
        yield from _inflated(entry, content, fd, copy)
    elif isinstance(content, Range):
        yield from _range(entry, content, fd)
    elif content is None or len(content.data) != entry.size:
        raise LayerError(f"{entry.path}: its content does not have {entry.size} bytes", _BUG)
    else:
        yield content.data


def _range(entry: Entry, content: Range, fd: int) -> Iterator[bytes]:
    crc = 0
    sha256 = hashlib.sha256() if content.sha256 else None
    for data in _read(entry, fd, content.offset, entry.size, CHUNK):
        if content.crc32 is not None:
            crc = isal_zlib.crc32(data, crc)
        if sha256 is not None:
            sha256.update(data)
        yield data
    if content.crc32 is not None and crc != content.crc32:
        raise _damaged(entry, "checksum")
    if sha256 is not None and (found := sha256.hexdigest()) != content.sha256:
        raise _damaged(entry, f"its sha256 is {found}, the package lists {content.sha256}")


def _inflated(entry: Entry, content: Deflated, fd: int, copy: Consumer) -> Iterator[bytes]:
    inflate = isal_zlib.decompressobj(-15)
    crc, size = 0, 0
    for raw in _read(entry, fd, content.offset, content.compressed, STEP):
        copy(raw)
        try:
            data = inflate.decompress(raw)
        except _ISAL_ERROR as e:
            raise _damaged(entry, str(e)) from None
        crc = isal_zlib.crc32(data, crc)
        size += len(data)
        if size > entry.size:  # a zip bomb, for example
            break
        yield data
    if not inflate.eof or inflate.unused_data or size != entry.size or crc != content.crc32:
        raise _damaged(entry, "checksum or length")


def _read(entry: Entry, fd: int, at: int, left: int, step: int) -> Iterator[bytes]:
    while left:
        data = os.pread(fd, min(left, step), at)
        if not data:
            hint = "the archive changed while it was read: build again"
            raise LayerError(f"{one_line(entry.path)}: its archive ends too early", hint)
        at += len(data)
        left -= len(data)
        yield data


def _damaged(entry: Entry, why: str) -> LayerError:
    hint = "fetch the package again (builder cache prune --packages), or lock another version"
    return LayerError(f"{one_line(entry.path)}: damaged in its archive ({why})", hint)
