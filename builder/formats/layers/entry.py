"""What a package puts into the image: the types that readers, the planner and the tar writer share.

A reader (``wheel.py``, ``conda.py``) describes a package in two steps, in any thread:

1. ``wheel_index`` and ``conda_index`` list the paths only. This is cheap and cached. The planner
   uses it to find files that several packages contain.
2. ``wheel_entries`` and ``conda_entries`` return the members of the layer's tar with their content,
   in the order of the index. A hard link becomes a regular file if the path that it repeats is left
   out. Large content is a reference into the archive or into a temporary file; at most 64 MiB are
   in memory at a time.

Paths are relative to the image's root, with forward slashes, without a leading slash or ``..``:
``opt/conda/lib/libz.so.1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Kind = Literal["file", "dir", "symlink", "hardlink"]


@dataclass(frozen=True, slots=True)
class Inline:
    """Content in memory."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Deflated:
    """A raw deflate stream (RFC 1951) inside another file: a member of a zip archive.

    The stream can become a member of a gzip layer without being compressed again, see
    :mod:`builder.formats.layers.compress`.
    """

    source: Path
    """The file that holds the stream."""
    offset: int
    """Where the stream begins in ``source``, in bytes."""
    compressed: int
    """Bytes of the stream."""
    crc32: int
    """CRC-32 of the inflated content."""


@dataclass(frozen=True, slots=True)
class Range:
    """Content that is an uncompressed range of another file. Its length is the entry's ``size``."""

    source: Path
    """The file that holds the content."""
    offset: int = 0
    """Where the content begins in ``source``, in bytes."""
    crc32: int | None = None
    """CRC-32 of the content, which is checked when it is written; None if the archive has none."""
    sha256: str = ""
    """The hash of the content in hex, checked when it is written; empty if it is not known."""


Content = Inline | Deflated | Range


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of a layer's tar. Its owner is always 0:0, its time that of the build."""

    path: str
    kind: Kind
    mode: int = 0o644
    size: int = 0
    """Bytes of a regular file; 0 for every other kind."""
    target: str = ""
    """The text of a symlink, or the image path (in the same layer) that a hard link repeats."""
    content: Content | None = None
    """None for everything but a regular file, and for an empty one."""

    @classmethod
    def of(cls, path: str, data: bytes, mode: int = 0o644) -> Entry:
        """Return a regular file whose content is in memory."""
        return cls(path, "file", mode, len(data), content=Inline(data))


class IndexEntry(NamedTuple):
    """A path of a package. Parent directories appear only if the package lists them."""

    path: str
    kind: Kind
    size: int = 0
    """Bytes of a regular file; 0 for every other kind."""
    target: str = ""
    """What a hard link repeats; empty if this is known only after reading the content."""


class PackageIndex(NamedTuple):
    """All paths of a package, in the order of its archive; the last one is that of its record."""

    entries: tuple[IndexEntry, ...]
    post_link: tuple[str, ...]
    """Image paths of the package's post-link and pre-link scripts."""
    requires: tuple[str, ...]
    """The ``Requires-Dist`` texts of a wheel's METADATA."""
    archive: int
    """Bytes of the archive."""
    licences: tuple[str, ...]
    """The licences that the package declares, see :mod:`builder.formats.layers.licences`."""

    @property
    def unpacked(self) -> int:
        """Bytes of all regular files."""
        return sum(e.size for e in self.entries)


#: A component of an SBOM (CycloneDX 1.6) that is inside of a package, without a reference.
Part = dict[str, Any]


class Declared(NamedTuple):
    """What a package says of itself, for the SBOM of an image."""

    licences: tuple[str, ...]
    parts: tuple[Part, ...]
    unread: tuple[str, ...]
    """SBOMs of the package that were not read, by path."""


@dataclass(frozen=True, slots=True)
class LinkContext:
    """The inputs of a package's files besides its archive; a part of a layer's cache key."""

    prefix: str
    """Folder of the environment in the image: ``/opt/conda``."""
    python: str
    """Version of the image's Python, ``3.11``; empty if the environment has none."""
    site_packages: str
    """Relative to the prefix: ``lib/python3.11/site-packages``."""
    platform: str = "linux-64"
    requested: frozenset[str] = field(default_factory=frozenset)
    """Names in the environment file, for ``requested_spec`` of conda and pip's ``REQUESTED``."""

    @property
    def interpreter(self) -> str:
        """Path of the image's Python for a shebang line; empty if the environment has none."""
        return f"{self.prefix}/bin/python{self.python}" if self.python else ""
