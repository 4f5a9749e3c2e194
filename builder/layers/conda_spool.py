"""The files of a conda package in a temporary file.

An entry's content is a reference into that file, so the memory needed does not depend on the package's size.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from builder.layers.conda_archive import CondaMember, open_part, read_part
from builder.model import Fetched
from builder.store.files import CHUNK, space_errors
from builder.store.temporary import temporary_name


@dataclass(frozen=True, slots=True)
class Spool:
    """A package's uncompressed tar in a temporary file."""

    path: Path
    file: IO[bytes]
    members: Mapping[str, CondaMember]
    """By path. If two members have the same path, the last one counts, as when a tar is unpacked."""

    def read(self, member: CondaMember) -> Iterator[bytes]:
        """Returns a regular file's content in chunks of 1 MiB."""
        at, left = member.offset, member.size
        while left:
            chunk = os.pread(self.file.fileno(), min(left, CHUNK), at)
            if not chunk:
                raise OSError(errno.EIO, "the file was cut while it was read", str(self.path))
            at += len(chunk)
            left -= len(chunk)
            yield chunk

    def append(self, chunks: Iterator[bytes]) -> int:
        """Appends rewritten content behind the tar, and returns its offset in bytes.

        Raises:
            SpaceError: the disk is full.
        """
        with space_errors(self.path.parent):
            start = self.file.seek(0, os.SEEK_END)
            for chunk in chunks:
                self.file.write(chunk)
            self.file.flush()
        return start


@contextmanager
def spooled(fetched: Fetched, tmpdir: Path, most: int) -> Iterator[Spool]:
    """Decompresses the package's files into a temporary file, which is removed at the end of the block.

    :meth:`builder.store.blobs.Store.sweep` knows the file's name, so the file of a killed build is removed
    later.

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
            members = {member.path: member for member in read_part(fetched, reader)}
            reader.finish()
        with space_errors(tmpdir):
            spool.flush()
        yield Spool(Path(spool.name), cast(IO[bytes], spool), members)
