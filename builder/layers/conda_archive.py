"""Opens conda packages: ``.conda`` (a zip of two zstd tars) and ``.tar.bz2``.

A package has two parts: ``info`` (metadata) and ``pkg`` (the files). The files are read through a
:class:`Spool`, the uncompressed tar in a temporary file. So an entry's content is a reference into that file,
and the memory needed does not depend on the package's size.
"""

from __future__ import annotations

import bz2
import os
import socket
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

import zstandard

from builder.errors import LayerError
from builder.layers.tar import check_path
from builder.model import Fetched
from builder.store.files import CHUNK, space_errors

#: What zipfile, tarfile, zstandard, bz2 and json raise for damaged input.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zstandard.ZstdError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    NotImplementedError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True)
class Spool:
    """A package's uncompressed tar in a temporary file."""

    path: Path
    file: IO[bytes]
    members: Mapping[str, tarfile.TarInfo]
    """By path, without a leading ``./``."""

    def read(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Returns a regular file's content in chunks of 1 MiB."""
        at, left = member.offset_data, member.size
        while left:
            chunk = os.pread(self.file.fileno(), min(left, CHUNK), at)
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


def fault(fetched: Fetched, what: str) -> LayerError:
    """Returns the error for a package that cannot be installed."""
    return LayerError(
        f"{fetched.package.filename}: {what}",
        "the package is damaged or hostile: fetch it again (builder cache prune), or lock another build",
    )


@contextmanager
def damage(fetched: Fetched) -> Iterator[None]:
    """Raises a :class:`LayerError` that names the package in place of exceptions of decoders and parsers."""
    try:
        yield
    except _DAMAGE as e:
        raise fault(fetched, f"cannot be read: {e or type(e).__name__}") from e


def is_safe(path: str) -> bool:
    """Returns whether a path is relative, normalized, valid UTF-8 and without ``..``."""
    try:
        check_path(path)
        path.encode()
    except (LayerError, UnicodeEncodeError):
        return False
    return True


def is_conda(fetched: Fetched) -> bool:
    """Returns whether the package is a ``.conda`` (not a ``.tar.bz2``).

    Raises:
        LayerError: it is neither.
    """
    name = fetched.package.filename
    if not name.endswith((".conda", ".tar.bz2")):
        raise LayerError(
            f"{name!r} is not a conda package", "conda packages end in .conda or .tar.bz2: lock again"
        )
    return name.endswith(".conda")


def member_path(member: tarfile.TarInfo) -> str:
    """Returns a member's path without a leading ``./``."""
    return member.name.removeprefix("./")


@contextmanager
def open_part(fetched: Fetched, part: Literal["info", "pkg"]) -> Iterator[IO[bytes]]:
    """Opens one part of a package as an uncompressed tar stream. A ``.tar.bz2`` holds both parts in one tar.

    Raises:
        LayerError: the package is damaged.
    """
    with damage(fetched):
        if not is_conda(fetched):
            with bz2.open(fetched.path) as plain:
                yield cast(IO[bytes], plain)
            return
        with zipfile.ZipFile(fetched.path) as archive:
            names = [i.filename for i in archive.infolist()]
            found = [n for n in names if n.startswith(f"{part}-") and n.endswith(".tar.zst")]
            if len(found) != 1:
                raise ValueError(f"{len(found)} {part}-*.tar.zst members, not 1")
            with archive.open(found[0]) as raw:
                yield zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def scan(fetched: Fetched) -> dict[str, tarfile.TarInfo]:
    """Returns the headers of the package's files by path. Decompresses the package once, and stores nothing.

    Raises:
        LayerError: the package is damaged or unsafe.
    """
    with open_part(fetched, "pkg") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        return _checked(fetched, tar)


@contextmanager
def spooled(fetched: Fetched, tmpdir: Path) -> Iterator[Spool]:
    """Decompresses the package's files into a temporary file, which is removed at the end of the block.

    :meth:`builder.store.blobs.Store.sweep` knows the file's name, so the file of a killed build is removed
    later.

    Raises:
        LayerError: the package is damaged or unsafe.
        SpaceError: the disk is full.
    """
    prefix = f"blob-{socket.gethostname()}-{os.getpid()}-"
    with space_errors(tmpdir):
        tmpdir.mkdir(parents=True, exist_ok=True)
        spool = tempfile.NamedTemporaryFile(dir=tmpdir, prefix=prefix)  # noqa: SIM115  closed below
    with spool:
        with open_part(fetched, "pkg") as stream:
            while chunk := stream.read(CHUNK):
                with space_errors(tmpdir):
                    spool.write(chunk)
        with space_errors(tmpdir):
            spool.flush()
        path = Path(spool.name)
        with damage(fetched), path.open("rb") as again, tarfile.open(fileobj=again, mode="r:") as tar:
            members = _checked(fetched, tar)
        yield Spool(path, cast(IO[bytes], spool), members)


def _checked(fetched: Fetched, tar: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Returns the members by path.

    If two members have the same path, the last one counts, as when a tar is unpacked.
    """
    members: dict[str, tarfile.TarInfo] = {}
    for member in tar:
        path = member_path(member)
        if path in ("", "."):
            continue
        if not is_safe(path):
            raise fault(fetched, f"unsafe member {member.name!r}")
        supported = member.isreg() or member.issym() or member.islnk() or member.isdir()
        if not supported or member.issparse():
            raise fault(fetched, f"member {path!r} is not a file, a link or a folder")
        members[path] = member
    return members


def resolved(
    fetched: Fetched, members: Mapping[str, tarfile.TarInfo], path: str
) -> tuple[str, tarfile.TarInfo]:
    """Returns the member that a path refers to, and its path.

    Hard links are followed to the file (or symlink) they repeat.

    Raises:
        LayerError: there is no such member, or a hard link points to none.
    """
    if path not in members:
        raise fault(fetched, f"{path!r} is listed in its info/ but not in the archive")
    followed = {path}
    while (member := members[path]).islnk():
        target = member.linkname.removeprefix("./")
        if target not in members or target in followed:
            raise fault(
                fetched,
                f"member {path!r} is a hard link to {member.linkname!r}, which is not a file of the package",
            )
        followed.add(target)
        path = target
    return path, member


def package_files(fetched: Fetched, paths: Collection[str]) -> dict[str, bytes]:
    """Returns the content of some small files of a package, without unpacking it.

    Links and files over 1 MiB are left out.

    Raises:
        LayerError: the package is damaged.
    """
    wanted = set(paths)
    found: dict[str, bytes] = {}
    if not wanted:
        return found
    with open_part(fetched, "pkg") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            path = member_path(member)
            if path not in wanted or not member.isreg() or member.size > CHUNK:
                continue
            wanted.discard(path)
            content = tar.extractfile(member)
            found[path] = content.read() if content else b""
            if not wanted:
                break
    return found
