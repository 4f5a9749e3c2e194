"""Decompresses layer blobs of any compression."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from isal import igzip, isal_zlib

from builder.core.errors import ImageError
from builder.core.store.files import CHUNK

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: Bytes of a zstd frame's window, which is held in memory: that of ``zstd --ultra -22``, and zstd's default.
MAX_ZSTD_WINDOW = 128 << 20
_CHUNKS_AHEAD = 16
#: A zstd frame that follows a blob. Where its content does not come last, the blob was cut, which the
#: library (0.25) takes for its end.
_END = b"the end of a blob"
_END_FRAME = zstandard.ZstdCompressor(write_checksum=True).compress(_END)
_DAMAGE: Any = (EOFError, isal_zlib.error, gzip.BadGzipFile, zstandard.ZstdError)


def inflate(path: Path, hashed: hashlib._Hash | None = None) -> Iterator[bytes]:
    """Yield the tar of a layer blob, in chunks.

    The magic number decides: gzip (any number of gzip members), zstd (any number of frames), or
    uncompressed.

    Args:
        path: the blob.
        hashed: receives the bytes of the blob, all of them at the end of the iteration.

    Raises:
        ImageError: the blob is damaged.
    """
    try:
        with path.open("rb") as blob:
            magic = blob.read(4)
            blob.seek(0)
            end = _END_FRAME if magic == ZSTD_MAGIC else b""
            f: Any = _Blob(blob, hashed, end) if end or hashed is not None else blob
            if magic.startswith(GZIP_MAGIC):
                with igzip.GzipFile(fileobj=f) as gz:  # type: ignore[no-untyped-call]
                    while data := gz.read(CHUNK):
                        yield data
            elif magic == ZSTD_MAGIC:
                yield from _zstd_content(f)
            else:
                while data := f.read(CHUNK):
                    yield data
            while hashed is not None and f.read(CHUNK):  # what the codec did not read
                pass
    except _DAMAGE as e:
        hint = "build again, or fetch the image again"
        raise ImageError(f"{path} is damaged: {e}", hint) from None


def _zstd_content(file: Any) -> Iterator[bytes]:
    """Yield the content of zstd frames. Raises EOFError if they were cut."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
    held = b""
    with decompressor.stream_reader(file, read_across_frames=True) as stream:
        while data := stream.read(CHUNK):
            if held and len(data) >= len(_END):
                yield held
                held = b""
            held += data
    if not held.endswith(_END):
        raise EOFError("it ends too early")
    if len(held) > len(_END):
        yield held[: -len(_END)]


class _Blob(io.RawIOBase):
    """A file whose bytes go into a hash as they are read. What ``end`` holds follows them."""

    def __init__(self, file: BinaryIO, hashed: hashlib._Hash | None, end: bytes) -> None:
        self._file, self._hashed, self._end = file, hashed, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as the buffer has, or fewer at the end, and return their number."""
        view = memoryview(buffer).cast("B")
        size: int = self._file.readinto(view)  # type: ignore[attr-defined]
        if self._hashed is not None:
            self._hashed.update(view[:size])
        if not size:
            size = len(self._end)
            view[:size], self._end = self._end, b""
        return size


class InflatingStream:
    """The tar of a layer blob; a thread decompresses ahead (the codecs release the GIL).

    Call :meth:`close` when done.

    Args:
        path: the blob.
        hashed: receives the bytes of the blob; all of them when the stream is at its end.
    """

    def __init__(self, path: Path, hashed: hashlib._Hash | None = None) -> None:
        self._queue: queue.Queue[bytes | BaseException] = queue.Queue(_CHUNKS_AHEAD)
        self._stop = False
        self._thread = threading.Thread(target=self._run, args=(path, hashed), daemon=True)
        self._thread.start()

    def _run(self, path: Path, hashed: hashlib._Hash | None) -> None:
        try:
            for data in inflate(path, hashed):
                self._queue.put(data)
                if self._stop:
                    return
            self._queue.put(b"")
        except BaseException as e:
            self._queue.put(e)

    def close(self) -> None:
        """Stop the thread."""
        self._stop = True
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                # makes room for the put() that the thread may wait in
                self._queue.get(timeout=0.05)

    def read(self, size: int, /) -> bytes:
        """Return the next chunk, whatever its size; an empty one at the end.

        Raises:
            ImageError: the blob is damaged.
        """
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        if not item:
            self._queue.put(item)
        return item
