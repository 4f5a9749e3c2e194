"""A squashfs that is, or will be, a partition of a SIF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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

    def source(self, below: str = "") -> Source:
        """Its members, or those of one directory."""
        return squashfs_source(self.path, self.offset, self.name, below, self.size)
