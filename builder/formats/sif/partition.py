"""A squashfs that is, or will be, a partition of a SIF."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from builder.core.errors import ImageError
from builder.core.store.blobs import Store
from builder.core.store.files import pieces, sha256_of
from builder.formats.trees.sources import Source, squashfs_source


@dataclass(frozen=True, slots=True)
class SquashfsPart:
    """A range of a file that holds a squashfs."""

    path: Path
    offset: int
    """Where it begins in the file, in bytes."""
    size: int
    """Bytes."""
    digest: str
    """Identifies the content: ``sha256:...``, or of a base SIF ``sha256:...#NUMBER``, the SIF's
    digest and the partition."""
    name: str
    """Its name in the SIF."""

    @property
    def is_base(self) -> bool:
        """Whether it is a part of a base SIF."""
        return "#" in self.digest

    def source(self, below: str = "") -> Source:
        """Return its members, or those of one directory."""
        return squashfs_source(self.path, self.offset, self.name, below, self.size)

    def write(self, out: BinaryIO) -> int:
        """Copy the squashfs to the current position of a file. Returns its size in bytes.

        The kernel copies if it can: some file systems then share the blocks.
        """
        out.flush()
        start, copied = out.tell(), 0
        with self.path.open("rb") as source:
            # another file system, or a kernel before 4.5: copied below from there on
            with contextlib.suppress(OSError):
                files = source.fileno(), out.fileno()
                while more := os.copy_file_range(
                    *files, self.size - copied, self.offset + copied, start + copied
                ):
                    copied += more
            source.seek(self.offset + copied)
            out.seek(start + copied)
            copied += sum(map(out.write, pieces(source, self.size - copied)))
        if copied < self.size:
            what = f"{self.path} ended early: it was changed while it was copied"
            raise ImageError(what, "build again")
        return self.size

    def is_intact(self, sif: Path, start: int, store: Store) -> bool:
        """Return whether the bytes at a position of a new SIF match the digest.

        The SIF's own digest is made from the bytes that were written, so it cannot show that a bit
        had flipped in the cache before. Partitions of a base SIF have no digests: the base SIF is
        hashed instead. What this process has just made is not hashed again.
        """
        if self.is_base:
            return store.rehash(self.path, self.digest.partition("#")[0])
        if store.was_hashed(self.path, self.digest):
            return True
        with sif.open("rb") as file:
            file.seek(start)
            return f"sha256:{sha256_of(pieces(file, self.size)).hex()}" == self.digest


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """Content that is written into a SIF as it is made. The cache does not hold it."""

    name: str
    """Its name in the SIF."""
    digest: str
    """A hash of it; of a partition ``key:...``, of everything that its content depends on."""
    size: int
    """About how many bytes it will have."""
    write: Callable[[BinaryIO], int]
    """Writes it at the current position of a file. Returns its size in bytes."""


#: What a SIF holds.
Content = SquashfsPart | PlannedObject
