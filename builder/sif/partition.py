"""A squashfs that is, or will be, a partition of a SIF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from builder.trees.sources import Source, squashfs_source


@dataclass(frozen=True, slots=True)
class Partition:
    """A range of a file that holds a squashfs."""

    path: Path
    offset: int
    """Where it begins in the file, in bytes."""
    size: int
    """Bytes."""
    digest: str
    """Identifies the content: ``sha256:...``, or of a base SIF ``sha256:...#NUMBER``, the SIF's digest and
    the partition."""
    name: str
    """Its name in the SIF."""

    @property
    def is_base(self) -> bool:
        """Whether it is a part of a base SIF."""
        return "#" in self.digest

    @property
    def file_digest(self) -> str:
        """``sha256:...`` of the file that it is in."""
        return self.digest.partition("#")[0]

    def source(self, below: str = "") -> Source:
        """Its members, or those of one directory."""
        return squashfs_source(self.path, self.offset, self.name, below, self.size)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition that is written into a SIF as it is made. The cache does not hold it."""

    name: str
    """Its name in the SIF."""
    digest: str
    """``key:...``, a hash of everything that its content depends on."""
    expected_size: int
    """About how many bytes it will have."""
    write: Callable[[BinaryIO], int]
    """Writes the squashfs at the current position of a file. Returns its size in bytes."""
