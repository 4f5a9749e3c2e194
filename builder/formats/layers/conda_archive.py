"""Opens conda packages: ``.conda`` (a zip of two zstd tars) and ``.tar.bz2``.

A package has two parts: ``info`` (metadata) and ``pkg`` (the files). Each is read as a stream, in
chunks of 1 MiB, up to a bound. The files are unpacked into one temporary file, and an entry's
content is a reference into that file, so the memory needed does not depend on the package's size.
"""

from __future__ import annotations

import bz2
import fnmatch
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

import zstandard

from builder.core.model import Fetched
from builder.core.store.files import space_errors
from builder.core.store.temporary import temporary_name
from builder.core.tarheaders import TarError
from builder.formats.layers import bounds
from builder.formats.trees.reader import TarReader

from .bounds import most_unpacked
from .content import Consumer
from .entry import Kind
from .tar import TYPES, is_safe
from .zips import ZIP_ERRORS, fault, open_zip

#: What the decoders and json raise for damaged input.
_DAMAGE = (*ZIP_ERRORS, TarError, zstandard.ZstdError, KeyError, TypeError, AttributeError)

_KINDS = {flag: kind for kind, flag in TYPES.items()}


@dataclass(frozen=True, slots=True)
class CondaMember:
    """A member of a package's tar."""

    path: str
    """Without a leading ``./``."""
    kind: Kind
    mode: int
    size: int
    """Bytes of a file; 0 for every other kind."""
    target: str
    """The text of a symlink, or the path that a hard link repeats, without a leading ``./``."""
    offset: int
    """Where the content of a file begins in the uncompressed tar, in bytes."""


@contextmanager
def damage(fetched: Fetched) -> Iterator[None]:
    """Raise a :class:`LayerError` that names the package in place of errors of decoders."""
    try:
        yield
    except _DAMAGE as e:
        raise fault(fetched.package, f"cannot be read: {str(e) or type(e).__name__}") from e


@contextmanager
def open_part(
    fetched: Fetched,
    part: Literal["info", "pkg"],
    most: int | None = None,
    copy: Consumer = lambda data: None,
) -> Iterator[TarReader]:
    """Open one part of a package. A ``.tar.bz2`` holds both parts in one tar.

    Args:
        fetched: the package.
        part: which part.
        most: bytes that the part may unpack to; by default what :func:`most_unpacked` returns.
        copy: is called with all bytes of the uncompressed tar.

    Raises:
        LayerError: the package is damaged.
    """
    if most is None:
        most = most_unpacked(fetched.path.stat().st_size if fetched.path.exists() else 0)
    with damage(fetched):
        if fetched.package.filename.endswith(".tar.bz2"):
            with bz2.open(fetched.path) as plain:
                yield TarReader(plain, most, copy)
            return
        if not fetched.package.filename.endswith(".conda"):
            raise ValueError("conda packages end in .conda or .tar.bz2")
        with open_zip(fetched.path) as archive:
            found = fnmatch.filter(archive.namelist(), f"{part}-*.tar.zst")
            if len(found) != 1:
                raise ValueError(f"{len(found)} {part}-*.tar.zst members, not 1")
            decompressor = zstandard.ZstdDecompressor(max_window_size=bounds.MAX_ZSTD_WINDOW)
            with archive.open(found[0]) as raw:
                stream = decompressor.stream_reader(raw, read_across_frames=True)
                yield TarReader(stream, most, copy)


def read_part(fetched: Fetched, reader: TarReader) -> Iterator[CondaMember]:
    """Yield the members of a part. The caller may read a member's content before the next one.

    Raises:
        LayerError: the package is damaged or unsafe.
    """
    package = fetched.package
    with damage(fetched):
        for number, header in enumerate(reader.members(sparse=False), 1):
            if number > bounds.MAX_MEMBERS:
                raise TarError(f"more than {bounds.MAX_MEMBERS} members")
            kind = _KINDS.get(header.flag)
            path = header.path.removeprefix("./")
            if kind == "dir":
                path = path.rstrip("/")
            if path not in ("", "."):
                if not is_safe(path):
                    raise fault(package, f"unsafe member {header.path!r}")
                if kind is None:
                    raise fault(package, f"member {path!r} is not a file, a link or a folder")
                target = header.target.removeprefix("./") if kind == "hardlink" else header.target
                yield CondaMember(path, kind, header.mode, header.size, target, reader.position)


@dataclass(frozen=True, slots=True)
class Spool:
    """A package's uncompressed tar in a temporary file."""

    path: Path
    file: IO[bytes]
    members: Mapping[str, CondaMember]
    """By path; a hard link is the member that it repeats. If two members have the same path, the
    last one counts, as when a tar is unpacked."""

    @property
    def fd(self) -> int:
        """The descriptor of the file."""
        return self.file.fileno()

    def append(self, chunks: Iterator[bytes]) -> tuple[int, int]:
        """Append rewritten content behind the tar and return its offset and size in bytes.

        Raises:
            SpaceError: the disk is full.
        """
        with space_errors(self.path.parent):
            start = self.file.seek(0, os.SEEK_END)
            for chunk in chunks:
                self.file.write(chunk)
            size = self.file.tell() - start
            self.file.flush()
        return start, size


@contextmanager
def spooled(fetched: Fetched, tmpdir: Path, most: int) -> Iterator[Spool]:
    """Decompress a package's files into a temporary file, which is removed after the block.

    :meth:`builder.core.store.blobs.Store.sweep` knows the file's name, so the file of a killed
    build is removed later.

    Args:
        fetched: the package.
        tmpdir: where the file is made.
        most: bytes that the file may have.

    Raises:
        LayerError: the package is damaged or unsafe, or unpacks to more than ``most`` bytes.
        SpaceError: the disk is full.
    """
    with space_errors(tmpdir):
        tmpdir.mkdir(parents=True, exist_ok=True)
        spool = tempfile.NamedTemporaryFile(dir=tmpdir, prefix=f"{temporary_name()}-")  # noqa: SIM115  closed below

    def write(data: bytes) -> None:
        with space_errors(tmpdir):
            spool.write(data)

    with spool:
        with open_part(fetched, "pkg", most, write) as reader:
            members: dict[str, CondaMember] = {}
            for member in read_part(fetched, reader):
                is_link = member.kind == "hardlink"
                if is_link and member.target not in members:
                    raise fault(
                        fetched.package,
                        f"member {member.path!r} is a hard link to {member.target!r}, "
                        "which is not a file of the package before it",
                    )
                members[member.path] = members[member.target] if is_link else member
            reader.finish()
        with space_errors(tmpdir):
            spool.flush()
        yield Spool(Path(spool.name), cast(IO[bytes], spool), members)
