"""Downloads that continue where an earlier attempt, or an earlier run, ended.

The one invariant: a :class:`PartialFile` always knows the size and the digests of exactly the bytes
in its file. So a download can stop after any byte (a broken connection, ``kill -9``, a full disk),
and the next process that opens the file reads it once to restore the digests and asks the server
for the rest::

    file    |#########################..............|      size 25 of 40
    request  GET /blob   Range: bytes=25-
    answer   206 Partial Content   Content-Range: bytes 25-39/40
    file    |########################################|     the digest covers all 40 bytes

The content is trusted only when the digest of the whole file matches, so it does not matter who
wrote its first bytes. The caller compares the digest, and deletes the file when it does not match.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx2

from builder.core.store.files import CHUNK, space_errors

#: In bytes: an attempt that gains less counts as one that gained nothing, so a server that breaks off after
#: each byte cannot block a command.
MIN_GAIN = 64 << 10

#: Returns the bytes of the remote file from an offset (in bytes) on. May end early or raise httpx2.HTTPError.
Source = Callable[[int], Iterator[bytes]]
#: Called after each failed attempt with the error and the number of failures in a row. Raises to stop, else
#: waits.
Retry = Callable[[httpx2.HTTPError, int], None]
#: Receives the number of bytes that the file holds now.
Position = Callable[[int], None]


class WrongRange(httpx2.RemoteProtocolError):
    """The server sent another part of the file than requested."""


class HashedBytes:
    """Bytes that are hashed and not stored, for :func:`resume`.

    Args:
        algorithms: names of the digests to compute (``sha256``, ``md5``).
    """

    def __init__(self, algorithms: tuple[str, ...] = ("sha256",)) -> None:
        self._algorithms = algorithms
        HashedBytes.restart(self)  # a file keeps what it has

    def write(self, data: bytes) -> None:
        """Count and hash bytes."""
        self.size += len(data)
        for value in self._hashes.values():
            value.update(data)

    def digest(self, algorithm: str = "sha256") -> str:
        """Return the digest of the bytes, as ``sha256:<hex>``."""
        return f"{algorithm}:{self._hashes[algorithm].hexdigest()}"

    def restart(self) -> None:
        """Drop all bytes."""
        self.size = 0
        """Bytes received, or in the file."""
        self._hashes = {n: hashlib.new(n, usedforsecurity=n != "md5") for n in self._algorithms}


class PartialFile(HashedBytes, AbstractContextManager["PartialFile"]):
    """A file that a download appends to, with the digests of its content. Use as a context manager.

    Only one process at a time may open it, see :func:`builder.core.store.temporary.claimed`.

    Args:
        path: the file; its content, if any, counts as downloaded.
        algorithms: names of the digests to compute.

    Raises:
        SpaceError: the folder cannot be created or written.
    """

    def __init__(self, path: Path, algorithms: tuple[str, ...] = ("sha256",)) -> None:
        super().__init__(algorithms)
        self.path = path
        with space_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            super().write(chunk)

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            SpaceError: the disk is full.
        """
        with space_errors(self.path.parent):
            written = 0
            while written < len(data):
                written += self._file.write(memoryview(data)[written:])
        super().write(data)

    def restart(self) -> None:
        """Empty the file."""
        self._file.truncate(0)
        super().restart()


def resume(
    part: HashedBytes,
    source: Source,
    retry: Retry,
    *,
    size: int | None = None,
    position: Position = lambda size: None,
) -> None:
    """Append the missing bytes to a partial file.

    Args:
        part: the file.
        source: called with ``part.size`` for each attempt.
        retry: decides after each failed attempt; one that gained enough resets the count of
            failures.
        size: the expected size in bytes: attempts continue until the file has it, or until an
            attempt adds nothing. None: the first attempt that ends without an error is the last
            one.
        position: receives the size of the file as it grows.
    """
    failures = 0
    while size is None or part.size < size:
        position(part.size)
        before = part.size
        try:
            for data in source(part.size):
                part.write(data)
                position(part.size)
                if size is not None and part.size > size:
                    return  # longer than expected: the digest will not match
        except httpx2.HTTPError as e:
            if isinstance(e, WrongRange):  # the next attempt starts from the beginning
                part.restart()
            failures = 1 if part.size - before >= MIN_GAIN else failures + 1
            retry(e, failures)
            continue
        if size is None or part.size == before:
            return


def body_from(response: httpx2.Response, offset: int, *, decode: bool = False) -> Iterator[bytes]:
    """Yield a file's bytes from ``offset`` on, from the response to a request for that range.

    A server that ignores ranges sends the whole file (200): the bytes before ``offset`` are
    skipped.

    Args:
        response: the response.
        offset: in bytes.
        decode: undo a ``Content-Encoding``, which nobody asked for. False: Apache calls a file
            ``.tar.gz`` encoded, and it is not.

    Raises:
        WrongRange: the server sent another range.
        httpx2.TransportError: the connection broke, or is too slow (:mod:`.pace`).
    """
    skip = offset
    if response.status_code == 206:
        content_range = response.headers.get("Content-Range", "")
        start = re.match(r"bytes (\d+)-", content_range)
        if start is None or int(start[1]) != offset:
            raise WrongRange(f"requested bytes from {offset}, received {content_range!r}")
        skip = 0
    for data in response.iter_bytes() if decode else response.iter_raw():
        if skip >= len(data):
            skip -= len(data)
            continue
        yield data[skip:]
        skip = 0


def range_header(offset: int) -> dict[str, str]:
    """Return the header that requests a file from ``offset`` on; empty for the whole file."""
    return {"Range": f"bytes={offset}-"} if offset else {}
