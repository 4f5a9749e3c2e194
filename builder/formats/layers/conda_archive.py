"""Reads conda packages: ``.conda`` (a zip of two zstd tars) and ``.tar.bz2``.

A package has two parts: ``info`` (metadata) and ``pkg`` (the files). Each is read as a stream, in
chunks of 1 MiB, up to a bound. The files are unpacked into one temporary file, and an entry's
content is a reference into that file, so the memory needed does not depend on the package's size.
``info`` is read only as far as needed. Packages without ``info/paths.json`` are refused: conda-build
before 2.1 (2017) made them.
"""

from __future__ import annotations

import bz2
import fnmatch
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

import zstandard

from builder.core.model import Fetched, LockedPackage
from builder.core.store.files import space_errors
from builder.core.store.temporary import temporary_name
from builder.core.tarheaders import TarError
from builder.formats.trees.reader import TarReader

from . import bounds
from .bounds import most_unpacked
from .content import Consumer
from .entry import Kind
from .tar import TYPES, is_safe
from .zips import UNSUPPORTED, ZIP_ERRORS, check_size, fault, open_zip

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


#: Files that are read, and the most bytes of each.
_WANTED = {
    "info/index.json": bounds.MAX_METADATA,
    "info/paths.json": bounds.MAX_LISTING,
    "info/link.json": bounds.MAX_METADATA,
}
_REQUIRED = {"info/index.json", "info/paths.json"}
#: Bytes of a placeholder: Linux takes no longer paths.
_MAX_PLACEHOLDER = 4096
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

Noarch = Literal["", "python", "generic"]
_PATH_KINDS: Mapping[str, Kind] = {"hardlink": "file", "softlink": "symlink", "directory": "dir"}


@dataclass(frozen=True, slots=True)
class PathInfo:
    """A path of the package, as ``info/paths.json`` describes it."""

    path: str
    kind: Kind
    size: int | None = None
    """Bytes; None if an old package does not record it."""
    sha256: str = ""
    """In hex; empty if an old package does not record it."""
    no_link: bool = False
    """Whether conda copies the file, instead of linking it."""
    placeholder: str = ""
    """The build-time prefix to replace in the file; empty for none."""
    binary: bool = False
    """Whether the placeholder is replaced in C strings."""


@dataclass(frozen=True, slots=True)
class PackageInfo:
    """The metadata of a package that linking needs."""

    index: Mapping[str, Any]
    """The content of ``info/index.json``."""
    paths: tuple[PathInfo, ...]
    noarch: Noarch
    entry_points: tuple[tuple[str, str, str], ...]
    """``(command, module, function)``."""


def read_info(fetched: Fetched) -> PackageInfo:
    """Return the metadata in a package's ``info/``.

    Raises:
        LayerError: the package is damaged, unsafe, or not the one that the lock names.
    """
    files, package = _info_files(fetched), fetched.package
    with damage(fetched):
        index = _index(package, files)
        if "info/paths.json" not in files:
            raise fault(package, "no info/paths.json: it was made before 2017", UNSUPPORTED)
        paths = tuple(map(_path, json.loads(files["info/paths.json"])["paths"]))
        noarch, points = _noarch(index, files)
    if len(paths) > bounds.MAX_MEMBERS:
        what = f"{len(paths)} paths; at most {bounds.MAX_MEMBERS} are allowed"
        raise fault(package, what, UNSUPPORTED)
    for p in paths:
        if not is_safe(p.path):
            raise fault(package, f"unsafe path {p.path!r}")
    try:
        return PackageInfo(index, paths, noarch, tuple(_entry_point(p) for p in points))
    except ValueError as e:
        raise fault(package, f"entry point {e}") from None


def read_index_file(fetched: Fetched) -> Mapping[str, Any]:
    """Return the content of a package's ``info/index.json``.

    Raises:
        LayerError: the package is damaged, unsafe, or not the one that the lock names.
    """
    files = _info_files(fetched)
    with damage(fetched):
        return _index(fetched.package, files)


def _info_files(fetched: Fetched) -> dict[str, bytes]:
    """Return the wanted files of ``info/``.

    In a ``.tar.bz2`` they precede the content, which is not read then.
    """
    found: dict[str, bytes] = {}
    with open_part(fetched, "info") as reader:
        for member in read_part(fetched, reader):
            if found.keys() >= _REQUIRED and not member.path.startswith("info/"):
                break
            most = _WANTED.get(member.path)
            if most is None or member.kind != "file":
                continue
            check_size(fetched.package, member.path, member.size, most)
            found[member.path] = reader.read_exactly(member.size)
    return found


def _index(package: LockedPackage, files: Mapping[str, bytes]) -> dict[str, Any]:
    index = json.loads(files["info/index.json"]) if "info/index.json" in files else None
    if not isinstance(index, dict):
        raise fault(package, "no info/index.json")
    name = index.get("name")
    for key in ("name", "version", "build"):
        if not isinstance(index.get(key, ""), str | int | float):
            raise fault(package, f"{key} in its info/index.json is not text")
    wanted = package.name
    if str(name).lower() != wanted.lower():
        what = f"its info/index.json is that of {name!r}, but the lock names {wanted!r}"
        raise fault(package, what)
    return index


def _path(item: Any) -> PathInfo:
    """Return a path of ``paths.json``. Raises ValueError or TypeError for another form."""
    if not isinstance(item, dict) or not isinstance(path := item.get("_path"), str):
        raise ValueError("a path in paths.json has no name")
    kind = _PATH_KINDS.get(str(item.get("path_type") or "hardlink").lower())
    size = item.get("size_in_bytes")
    if kind is None:
        raise ValueError(f"{path!r} in paths.json has the unknown type {item['path_type']!r}")
    if size is not None and (type(size) is not int or size < 0):
        raise ValueError(f"{path!r} in paths.json has the size {size!r}")
    return PathInfo(
        path=path,
        kind=kind,
        size=size,
        sha256=_sha256(path, kind, item.get("sha256") or ""),
        no_link=bool(item.get("no_link")),
        placeholder=_placeholder(item.get("prefix_placeholder") or ""),
        binary=item.get("file_mode") == "binary",
    )


def _sha256(path: str, kind: Kind, text: Any) -> str:
    if not isinstance(text, str) or (kind == "file" and text and not _SHA256.fullmatch(text)):
        raise ValueError(f"{path!r} in paths.json has the sha256 {text!r}")
    return text


def _placeholder(text: Any) -> str:
    if not isinstance(text, str) or len(text.encode()) > _MAX_PLACEHOLDER or "\0" in text:
        raise ValueError("a prefix placeholder is not a path")
    return text


def _noarch(index: Mapping[str, Any], files: Mapping[str, bytes]) -> tuple[Noarch, tuple[str, ...]]:
    """Return the kind of noarch, and the entry points of a noarch python package."""
    noarch = index.get("noarch")
    if noarch not in (None, False, "", True, "python", "generic"):
        raise ValueError(f"noarch is {noarch!r}")
    if noarch not in (True, "python"):
        return ("generic" if noarch else ""), ()
    link = json.loads(files.get("info/link.json") or b"{}")
    return "python", tuple((link.get("noarch") or {}).get("entry_points") or ())


def _entry_point(text: str) -> tuple[str, str, str]:
    """Parse ``command = module:function``. Strict, because the words become part of a program."""
    command, equals, rest = map(str.strip, str(text).partition("="))
    module, colon, function = map(str.strip, rest.partition(":"))
    words = [*module.split("."), *function.split(".")]
    dotted = all(word.isidentifier() and word.isascii() for word in words)
    plain = is_safe(command) and command.isprintable() and not re.search(r"^\.|[/\\]", command)
    if not (equals and colon and dotted and plain):
        raise ValueError(f"{text!r} is not COMMAND = MODULE:FUNCTION")
    return command, module, function
