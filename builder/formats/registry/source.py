"""What an upload sends, hashed on the way: a file, memory, another registry; and its progress."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from builder.core.errors import RegistryError
from builder.core.store.files import pieces

#: Receives the number of bytes transferred since the last call; negative when some must be
#: transferred again.
Progress = Callable[[int], None]


class Meter:
    """Turns positions in a blob into differences, so that their sum is always the position.

    Args:
        progress: receives the differences; None: they are dropped.
        size: of the blob, in bytes; positions beyond it count as its end.
    """

    def __init__(self, progress: Progress | None, size: int) -> None:
        self._progress = progress
        self._size = size
        self._reported = 0

    def at(self, position: int) -> None:
        """Report a position of the transfer, in bytes from the start of the blob."""
        position = min(position, self._size)
        if self._progress is not None and position != self._reported:
            self._progress(position - self._reported)
        self._reported = position


#: Returns a blob's bytes from an offset (in bytes) on; called again after a failure.
BlobSource = Callable[[int], Iterator[bytes]]


class DamagedSource(RegistryError):
    """The bytes to send do not match the blob's digest, or are too few."""


def file_source(path: Path) -> BlobSource:
    """Yield the bytes of a file, in chunks of 1 MiB."""

    def read(offset: int) -> Iterator[bytes]:
        with path.open("rb") as f:
            f.seek(offset)
            yield from pieces(f)

    return read


def bytes_source(data: bytes) -> BlobSource:
    """Return the source for small data."""
    return lambda offset: iter((data[offset:],))


class HashedSource:
    """A source that is compared with the digest before its last byte is sent.

    The invariant: ``_hash`` covers the first ``_hashed`` bytes of the blob, each of them once,
    however often the upload begins again. Example, with an upload that continues at 9 MiB after a
    failure at 10 MiB::

        first attempt    |##########|                 hashed = 10 MiB
        second attempt            |#|##########|      the first of these MiB is sent again, not hashed again

    Args:
        source: the bytes.
        digest: what they must match.
        size: of the blob in bytes.
    """

    def __init__(self, source: BlobSource, digest: str, size: int) -> None:
        self._source = source
        self.digest = digest
        self.size = size
        self._hash = hashlib.sha256()
        self._hashed = 0

    def __call__(self, offset: int) -> Iterator[bytes]:
        """Yield the bytes from ``offset`` on.

        Raises:
            DamagedSource: they do not match the digest; raised before the last of them.
        """
        position = offset
        for data in self._source(offset):
            end = position + len(data)
            if position <= self._hashed < end:
                self._hash.update(memoryview(data)[self._hashed - position :])
                self._hashed = end
                if end >= self.size:
                    self._check()
            yield data
            position = end
        if position < self.size:
            missing = self.size - position
            message = f"the blob {self.digest} is {missing} bytes shorter than expected"
            raise DamagedSource(message, "build again")

    def _check(self) -> None:
        found = f"sha256:{self._hash.hexdigest()}"
        if found != self.digest:
            message = f"the blob {self.digest} is damaged: its bytes are {found}"
            raise DamagedSource(message, "build again")
