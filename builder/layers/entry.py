"""What a package puts into the image, described before any byte is written.

Readers (``wheel.py``, ``conda.py``) give an index first (paths only, cheap, cached) so that the planner can see which
packages bring the same file, and then the entries with their content, in an order that depends on the archive alone.
Paths are relative to the image's root, POSIX, without a leading slash or ``..``: ``opt/conda/lib/libz.so.1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from builder.model import Fetched

Kind = Literal["file", "dir", "symlink", "hardlink"]


@dataclass(frozen=True, slots=True)
class Inline:
    """Content that is held in memory."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Deflated:
    """Content that lies as a raw deflate stream (RFC 1951) in another file: a zip member.

    It can be put into a gzip layer as a member of its own, without compressing again. ``offset`` and ``compressed`` (bytes) say
    where the stream lies in ``source``; ``crc32`` is that of the content.
    """

    source: Path
    offset: int
    compressed: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Range:
    """Content that lies as it is in another file, ``offset`` bytes in."""

    source: Path
    offset: int = 0


Content = Inline | Deflated | Range


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a layer's tar. Owner is always 0:0 and the time that of the build."""

    path: str
    kind: Kind
    mode: int = 0o644
    size: int = 0
    """Bytes of a regular file; 0 for anything else."""
    target: str = ""
    """A symlink's text, or the image path (same layer) that a hard link repeats."""
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A path that a package brings; parent directories are not listed unless the package lists them itself."""

    path: str
    kind: Kind
    size: int = 0
    target: str = ""


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """All that a package brings, in the order of its archive, and what the planner must know about it."""

    entries: tuple[IndexEntry, ...]
    post_link: tuple[str, ...] = ()
    """Image paths of post-link / pre-link scripts in the package."""
    notes: tuple[str, ...] = ()
    """What a person should know (a menu that is not installed, ...)."""

    @property
    def unpacked(self) -> int:
        """Bytes of all regular files."""
        return sum(e.size for e in self.entries)


@dataclass(frozen=True, slots=True)
class LinkContext:
    """What the layout of a package depends on besides its archive. Part of a layer's cache key."""

    prefix: str
    """Where the environment lies in the image: ``/opt/conda``."""
    python: str
    """The image's Python, ``3.11``; empty when the environment has none."""
    site_packages: str
    """Relative to the prefix: ``lib/python3.11/site-packages``."""
    platform: str = "linux-64"
    requested: frozenset[str] = field(default_factory=frozenset)
    """Names that the environment file asks for (conda-meta's requested_spec, pip's REQUESTED)."""

    @property
    def interpreter(self) -> str:
        """The image's Python as a shebang line names it."""
        return f"{self.prefix}/bin/python{self.python}" if self.python else ""


class PackageReader(Protocol):
    """How one kind of archive becomes entries. ``wheel.WheelReader`` and ``conda.CondaReader`` are the two there are."""

    def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
        """What the package brings. Raises LayerError for an unsafe or damaged archive."""

    def entries(
        self, fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[Entry]:
        """The package's members, in the same order, without the paths of ``leave_out``.

        A hard link whose first name is left out becomes a file of its own. Large content is given by reference or written
        to a temporary file, never held in memory beyond 64 MiB at a time.
        """
