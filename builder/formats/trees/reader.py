"""Reads a tar from its start to its end while it is decompressed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from builder.core.store.files import CHUNK, ByteStream
from builder.core.tarheaders import BLOCK, TarEnd, TarError, TarHeader, TarLimit, read_headers


@dataclass
class TarReader:
    """An uncompressed tar."""

    stream: ByteStream
    """Its bytes."""
    most: int
    """Bytes that it may have. More raise a TarError."""
    copy: Callable[[bytes], object] = lambda data: None
    """Is called with all its bytes."""

    _data: memoryview = field(default=memoryview(b""), init=False)
    _read: int = field(default=0, init=False)

    @property
    def position(self) -> int:
        """Bytes that were read or skipped so far."""
        return self._read - len(self._data)

    def members(self, *, sparse: bool = True) -> Iterator[TarHeader]:
        """Yield the headers of the members; content that the caller does not read is skipped.

        Args:
            sparse: False refuses sparse files; whoever reads them uses :meth:`content`.

        Raises:
            TarError: the tar is damaged or ends too early, or a header is not supported or too
                large.
        """
        for header in read_headers(self.read_exactly):
            if header.extents is not None and not sparse:
                raise TarError(f"{header.path!r} is a sparse file, which is not supported")
            end = self.position + header.stored
            yield header
            deque(self.take(end - self.position), 0)
            self.read_exactly(-header.stored % BLOCK)  # the last member's may be missing

    def content(self, header: TarHeader) -> Iterator[bytes | memoryview]:
        """Yield the content of the current member; the holes of a sparse file are zeros.

        Raises:
            TarError: the tar ends too early.
        """
        at = 0
        pieces = ((0, header.size),) if header.extents is None else header.extents
        for offset, length in (*pieces, (header.size, 0)):
            for start in range(at, offset, CHUNK):
                yield bytes(min(CHUNK, offset - start))
            at = offset + length
            yield from self.take(length)

    def read_some(self, limit: int) -> memoryview:
        """Return between 1 and ``limit`` bytes; none at the end."""
        if not self._data:
            self._fill()
        out, self._data = self._data[:limit], self._data[limit:]
        return out

    def read_exactly(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""
        parts = []
        while size and (part := self.read_some(size)):
            parts.append(bytes(part))
            size -= len(part)
        return b"".join(parts)

    def take(self, size: int) -> Iterator[memoryview]:
        """Yield the next ``size`` bytes. Raises TarError if there are fewer."""
        while size:
            part = self.read_some(size)
            if not part:
                raise TarEnd
            size -= len(part)
            yield part

    def finish(self) -> None:
        """Read the rest, so that the checksums of the archive are checked. It is not copied."""
        self.copy = len
        while self._fill():
            pass

    def _fill(self) -> bool:
        chunk = self.stream.read(CHUNK)
        self._data = memoryview(chunk)
        self._read += len(chunk)
        if self._read > self.most:
            what = f"it unpacks to more than {self.most} bytes, which is more than it declares"
            raise TarLimit(what)
        self.copy(chunk)
        return bool(chunk)
