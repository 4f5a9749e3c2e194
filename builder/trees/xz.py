"""Reads xz files in bounded memory."""

from __future__ import annotations

import io
import lzma
import os
from pathlib import Path
from typing import Any

from builder.store.files import CHUNK

#: Bytes for decompressing. ``xz -9`` needs 65 MiB; the format allows 4 GiB.
MAX_XZ_MEMORY = 256 << 20


class XzFile(io.RawIOBase):
    """The content of an xz file. Unlike ``lzma.LZMAFile`` it has a bound for the memory of the decompressor.

    Reading raises lzma.LZMAError if the file is damaged or needs more memory, EOFError if it is cut short.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._start()

    def _start(self) -> None:
        self._file.seek(0)
        self._position = 0
        self._pending = b""
        self._decompressor = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_XZ_MEMORY)

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = b""
            if self._decompressor.eof and not self._next_stream():
                return 0
            if self._decompressor.needs_input:
                data = self._pending or self._file.read(CHUNK)
                self._pending = b""
                if not data:
                    raise EOFError("the file ends too early")
            out = self._decompressor.decompress(data, len(buffer))
            if out:
                buffer[: len(out)] = out
                self._position += len(out)
                return len(out)

    def _next_stream(self) -> bool:
        """Prepares for the next stream; returns False at the end of the file."""
        data = self._decompressor.unused_data.lstrip(b"\0")  # zeros between two streams are padding
        while not data:
            raw = self._file.read(CHUNK)
            if not raw:
                return False
            data = raw.lstrip(b"\0")
        self._pending, self._decompressor = data, self._new()
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        target = offset + (self._position if whence == os.SEEK_CUR else 0)
        if target < self._position:
            self._start()
        while self._position < target and self.read(min(CHUNK, target - self._position)):
            pass
        return self._position

    def tell(self) -> int:
        return self._position
