"""Decompresses layer blobs of any compression."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import queue
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from isal import igzip, isal_zlib

from builder.core.errors import ImageError
from builder.core.store.files import CHUNK, pieces, sha256_of

GZIP_MAGIC = b"\x1f\x8b"
#: The first bytes of a zstd file; the second form is a frame that readers skip (RFC 8878, 3.1.2).
ZSTD_START = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
#: Bytes of a zstd frame's window, which is held in memory: that of ``zstd --ultra -22``, and zstd's default.
MAX_ZSTD_WINDOW = 128 << 20
_CHUNKS_AHEAD = 16
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
            f: Any = blob if hashed is None else _HashedFile(blob, hashed)
            tar: Any = f
            if magic.startswith(GZIP_MAGIC):
                tar = igzip.GzipFile(fileobj=f)  # type: ignore[no-untyped-call]
            elif ZSTD_START.match(magic):
                decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
                tar = decompressor.stream_reader(f, read_across_frames=True, closefd=False)
            yield from pieces(tar)
            while hashed is not None and f.read(CHUNK):  # what the codec did not read
                pass
    except _DAMAGE as e:
        hint = "build again, or fetch the image again"
        raise ImageError(f"{path} is damaged: {e}", hint) from None


def tar_digest(path: Path) -> str:
    """Return the digest of the tar of a layer blob. Raises as :func:`inflate` does."""
    return f"sha256:{sha256_of(inflate(path)).hex()}"


class _HashedFile(io.RawIOBase):
    """A file whose bytes go into a hash as they are read."""

    def __init__(self, file: BinaryIO, hashed: hashlib._Hash) -> None:
        self._file = file
        self._hashed = hashed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as the buffer has, or fewer at the end, and return their number."""
        view = memoryview(buffer).cast("B")
        size: int = self._file.readinto(view)  # type: ignore[attr-defined]
        self._hashed.update(view[:size])
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
