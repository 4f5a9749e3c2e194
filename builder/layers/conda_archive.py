"""Reading conda packages: ``.conda`` (a zip of two zstd tars) and ``.tar.bz2``, and what their ``info/`` says about linking.

The info part is read alone and only as far as needed. The package's files are reached through a :class:`Spool`, the uncompressed
tar in a temporary file, so that content can be given by reference and memory stays small whatever the package's size.
"""

from __future__ import annotations

import bz2
import json
import os
import shlex
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

import zstandard

from builder.errors import LayerError
from builder.layers.tar import check_path
from builder.model import Fetched
from builder.store.files import space_errors
from builder.store.temporary import temporary_name

CHUNK = 1 << 20
_MAX_INFO = 256 << 20
#: What a line of ``info/has_prefix`` that names a file only means, as in conda. In two pieces, because conda replaces it where
#: it stands in an installed file.
_DEFAULT_PLACEHOLDER = "/opt/anaconda1" + "anaconda2anaconda3"
_WANTED = frozenset(
    f"info/{n}"
    for n in (
        "index.json",
        "paths.json",
        "files",
        "has_prefix",
        "no_link",
        "no_softlink",
        "link.json",
        "package_metadata.json",
    )
)

PathKind = Literal["file", "symlink", "dir"]
_KINDS: Mapping[str, PathKind] = {"hardlink": "file", "softlink": "symlink", "directory": "dir"}


@dataclass(frozen=True, slots=True)
class PathInfo:
    """A path of the package as ``info/paths.json`` describes it; ``size`` in bytes, None when an old package does not say."""

    path: str
    kind: PathKind
    size: int | None = None
    sha256: str = ""
    no_link: bool = False
    placeholder: str = ""
    binary: bool = False


@dataclass(frozen=True, slots=True)
class PackageInfo:
    """What linking needs to know about a package. ``entry_points`` are ``(command, module, function)``."""

    index: Mapping[str, Any]
    paths: tuple[PathInfo, ...]
    noarch: Literal["", "python", "generic"]
    entry_points: tuple[tuple[str, str, str], ...]

    @property
    def unpacked(self) -> int:
        """Bytes of all files, as far as the package says."""
        return sum(p.size or 0 for p in self.paths)


@dataclass(frozen=True, slots=True)
class Spool:
    """The package's tar, uncompressed, in a temporary file; ``members`` by path without a leading ``./``."""

    path: Path
    file: IO[bytes]
    members: Mapping[str, tarfile.TarInfo]

    def read(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """A regular file's content in chunks of 1 MiB."""
        at, left = member.offset_data, member.size
        while left:
            chunk = os.pread(self.file.fileno(), min(left, CHUNK), at)
            at, left = at + len(chunk), left - len(chunk)
            yield chunk

    def append(self, chunks: Iterator[bytes]) -> int:
        """Puts rewritten content behind the tar; gives where it starts. Raises SpaceError when the disk is full."""
        with space_errors(self.path.parent):
            start = self.file.seek(0, os.SEEK_END)
            for chunk in chunks:
                self.file.write(chunk)
            self.file.flush()
        return start


def fault(fetched: Fetched, what: str) -> LayerError:
    """The error for a package that must not be laid out."""
    return LayerError(
        f"{fetched.package.filename}: {what}",
        "the package is damaged or hostile: fetch it again (builder cache prune), or lock another build of it",
    )


@contextmanager
def damage(fetched: Fetched) -> Iterator[None]:
    """Turns what the decoders raise into a :class:`LayerError` that names the package."""
    try:
        yield
    except (
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
    ) as e:
        raise fault(fetched, f"cannot be read: {e or type(e).__name__}") from e


def is_zip(fetched: Fetched) -> bool:
    """Whether the package is a ``.conda``."""
    name = fetched.package.filename
    if not name.endswith((".conda", ".tar.bz2")):
        raise LayerError(
            f"{name!r} is no conda package", "conda packages end in .conda or .tar.bz2: lock again"
        )
    return name.endswith(".conda")


@contextmanager
def _stream(fetched: Fetched, part: Literal["info", "pkg"]) -> Iterator[IO[bytes]]:
    """One part of a package as an uncompressed tar stream; a ``.tar.bz2`` holds both in one."""
    with damage(fetched):
        if not is_zip(fetched):
            with bz2.open(fetched.path) as plain:
                yield cast(IO[bytes], plain)
            return
        with zipfile.ZipFile(fetched.path) as archive:
            found = [
                i
                for i in archive.infolist()
                if i.filename.startswith(f"{part}-") and i.filename.endswith(".tar.zst")
            ]
            if len(found) != 1:
                raise ValueError(f"{len(found)} {part}-*.tar.zst members, not 1")
            with archive.open(found[0]) as raw:
                yield zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./")


# info -----------------------------------------------------------------------------------------------------------------


def read_info(fetched: Fetched, spool: Spool | None = None) -> PackageInfo:
    """What a package's ``info/`` says. ``spool`` saves a second pass over a ``.tar.bz2`` that is unpacked already.

    Raises:
        LayerError: the package is damaged, unsafe, or not the one that the lock names.
    """
    if spool is not None and not is_zip(fetched):
        with damage(fetched):
            files = {
                n: b"".join(spool.read(m)) for n, m in spool.members.items() if n in _WANTED and m.isreg()
            }
    else:
        files = _info_files(fetched)
    with damage(fetched):
        index = json.loads(files["info/index.json"]) if "info/index.json" in files else None
        if not isinstance(index, dict):
            raise fault(fetched, "no info/index.json")
        if str(index.get("name")).lower() != fetched.package.name.lower():
            raise fault(
                fetched,
                f"its info/index.json says it is {index.get('name')!r}, the lock says {fetched.package.name!r}",
            )
        if "info/paths.json" in files:
            paths = tuple(_path(p) for p in json.loads(files["info/paths.json"])["paths"])
        else:
            paths = _old_paths(files, spool.members if spool is not None else scan(fetched))
        noarch, points = _noarch(index, files)
    for p in paths:
        if not is_safe(p.path):
            raise fault(fetched, f"unsafe path {p.path!r}")
    try:
        return PackageInfo(index, paths, noarch, tuple(_entry_point(p) for p in points))
    except ValueError as e:
        raise fault(fetched, f"entry point {e}") from None


def is_safe(path: str) -> bool:
    """Whether a path is relative, normal, stays inside and can be written down as UTF-8."""
    try:
        check_path(path)
        path.encode()
    except (LayerError, UnicodeEncodeError):
        return False
    return True


def _info_files(fetched: Fetched) -> dict[str, bytes]:
    """The wanted files of info/, read no further than needed: a ``.tar.bz2`` has them first, before its content."""
    out: dict[str, bytes] = {}
    with _stream(fetched, "info") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if (name := _name(member)) not in _WANTED or not member.isreg():
                continue
            if member.size > _MAX_INFO:
                raise fault(fetched, f"{name} has {member.size} bytes")
            content = tar.extractfile(member)
            out[name] = content.read() if content else b""
            if {"info/index.json", "info/paths.json"} <= out.keys():
                index = json.loads(out["info/index.json"])
                if (
                    not isinstance(index, dict)
                    or index.get("noarch") not in ("python", True)
                    or "info/link.json" in out
                ):
                    break
    return out


def _path(item: Mapping[str, Any]) -> PathInfo:
    size = item.get("size_in_bytes")
    return PathInfo(
        path=str(item["_path"]),
        kind=_KINDS[str(item.get("path_type") or "hardlink").lower()],
        size=None if size is None else int(size),
        sha256=item.get("sha256") or "",
        no_link=bool(item.get("no_link")),
        placeholder=item.get("prefix_placeholder") or "",
        binary=item.get("file_mode") == "binary",
    )


def _old_paths(files: Mapping[str, bytes], members: Mapping[str, tarfile.TarInfo]) -> tuple[PathInfo, ...]:
    """The paths of a package from before paths.json, in the order of ``info/files``."""

    def lines(name: str) -> list[str]:
        return [x for x in files.get(f"info/{name}", b"").decode().splitlines() if x.strip()]

    no_link = {*lines("no_link"), *lines("no_softlink")}
    prefixes = {
        path: (placeholder, mode) for placeholder, mode, path in map(_has_prefix, lines("has_prefix"))
    }
    out = []
    for path in dict.fromkeys(lines("files")):
        if (member := members.get(path)) is None:
            raise ValueError(f"{path!r} is in info/files but not in the archive")
        placeholder, mode = prefixes.get(path, ("", ""))
        kind: PathKind = "symlink" if member.issym() else "dir" if member.isdir() else "file"
        size = member.size if member.isreg() else None
        out.append(
            PathInfo(
                path, kind, size, no_link=path in no_link, placeholder=placeholder, binary=mode == "binary"
            )
        )
    return tuple(out)


def _has_prefix(line: str) -> tuple[str, str, str]:
    """A line of ``info/has_prefix``: placeholder, mode and path, each perhaps quoted; or a path alone, as conda reads it."""
    words = [w.strip("\"'") for w in shlex.split(line, posix=False)]
    if len(words) == 3 and words[1].lower() in ("text", "binary"):
        return words[0], words[1].lower(), words[2]
    return _DEFAULT_PLACEHOLDER, "text", line.strip().strip('"')


def _noarch(
    index: Mapping[str, Any], files: Mapping[str, bytes]
) -> tuple[Literal["", "python", "generic"], tuple[str, ...]]:
    stated = index.get("noarch")
    if stated not in (None, False, "", True, "python", "generic"):
        raise ValueError(f"noarch is {stated!r}")
    if stated not in (True, "python"):
        return ("generic" if stated else ""), ()
    link = json.loads(files.get("info/link.json") or files.get("info/package_metadata.json") or b"{}")
    return "python", tuple((link.get("noarch") or {}).get("entry_points") or ())


def _entry_point(text: str) -> tuple[str, str, str]:
    """``command = module:function``; strict, because it becomes a program's text."""
    command, equals, rest = (x.strip() for x in str(text).partition("="))
    module, colon, function = (x.strip() for x in rest.partition(":"))
    dotted = all(
        part.isidentifier() and part.isascii() for name in (module, function) for part in name.split(".")
    )
    plain = is_safe(command) and not command.startswith(".") and "/" not in command and "\\" not in command
    if not (equals and colon and dotted and plain):
        raise ValueError(f"{text!r} is not COMMAND = MODULE:FUNCTION")
    return command, module, function


# content --------------------------------------------------------------------------------------------------------------


def scan(fetched: Fetched) -> dict[str, tarfile.TarInfo]:
    """The headers of the package's content, without keeping the content: one pass of decompression."""
    with _stream(fetched, "pkg") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        return _checked(fetched, tar)


@contextmanager
def spooled(fetched: Fetched, tmpdir: Path) -> Iterator[Spool]:
    """The package's content in a temporary file that is gone when the block ends.

    Its name is one that :meth:`builder.store.Store.sweep` knows, so that a killed build leaves nothing for good.
    """
    prefix = temporary_name() + "-"
    with space_errors(tmpdir):
        tmpdir.mkdir(parents=True, exist_ok=True)
        spool = tempfile.NamedTemporaryFile(dir=tmpdir, prefix=prefix)  # noqa: SIM115  closed below
    with spool:
        with _stream(fetched, "pkg") as stream:
            while chunk := stream.read(CHUNK):
                with space_errors(tmpdir):
                    spool.write(chunk)
        with space_errors(tmpdir):
            spool.flush()
        with damage(fetched), open(spool.name, "rb") as again, tarfile.open(fileobj=again, mode="r:") as tar:  # noqa: PTH123
            members = _checked(fetched, tar)
        yield Spool(Path(spool.name), cast(IO[bytes], spool), members)


def _checked(fetched: Fetched, tar: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Members by path; a path that stands twice is what it was last, as when a tar is unpacked."""
    members: dict[str, tarfile.TarInfo] = {}
    for member in tar:
        name = _name(member)
        if name in ("", "."):
            continue
        if not is_safe(name):
            raise fault(fetched, f"unsafe member {member.name!r}")
        if not (member.isreg() or member.issym() or member.islnk() or member.isdir()) or member.issparse():
            raise fault(fetched, f"member {name!r} is neither a file, a link nor a folder")
        members[name] = member
    return members


def resolved(
    fetched: Fetched, members: Mapping[str, tarfile.TarInfo], name: str
) -> tuple[str, tarfile.TarInfo]:
    """The member that a name stands for, and its name: hard links are followed to the file (or symlink) that they repeat."""
    if name not in members:
        raise fault(fetched, f"{name!r} is listed in its info/ but not in the archive")
    followed = {name}
    while (member := members[name]).islnk():
        target = member.linkname.removeprefix("./")
        if target not in members or target in followed:
            raise fault(
                fetched,
                f"member {name!r} is a hard link to {member.linkname!r}, which is no file of the package",
            )
        followed.add(target)
        name = target
    return name, member


def package_files(fetched: Fetched, names: Collection[str]) -> dict[str, bytes]:
    """The content of some small files of a package, without unpacking the rest; links and large files are left out."""
    left = set(names)
    out: dict[str, bytes] = {}
    if left:
        with _stream(fetched, "pkg") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                if (name := _name(member)) in left and member.isreg() and member.size <= CHUNK:
                    left.discard(name)
                    content = tar.extractfile(member)
                    out[name] = content.read() if content else b""
                    if not left:
                        break
    return out
