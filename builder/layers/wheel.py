"""Wheels as layer entries, laid out as PyPA ``installer`` lays them out (PEP 427, PEP 376), with nothing unpacked.

Scripts get the image's interpreter, RECORD lists what is installed where, INSTALLER says builder, REQUESTED marks what the
environment file asked for. No bytecode, no time stamps, no paths of this machine.

The archive's sha256 is locked and was checked when it was fetched, and every member's CRC is checked when its layer is written:
the wheel's own RECORD hashes are passed on, not computed again.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import os
import re
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import BytesHeaderParser

from installer.scripts import Script
from installer.utils import SCHEME_NAMES, parse_entrypoints, parse_wheel_filename
from packaging.utils import canonicalize_name

from builder.errors import LayerError
from builder.layers.entry import (
    Content,
    Deflated,
    Entry,
    IndexEntry,
    Inline,
    LinkContext,
    PackageIndex,
    Range,
)
from builder.layers.tar import check_path
from builder.model import Fetched

_LOCAL_HEADER = 30
#: What an installer writes anew (PEP 376, PEP 610), or what signs the RECORD that it replaces.
_INSTALLERS = frozenset({"INSTALLER", "REQUESTED", "RECORD", "RECORD.jws", "RECORD.p7s", "direct_url.json"})
_ANY_SHEBANG = b"#!python"
_MAX_SCRIPT = 16 << 20


@dataclass(frozen=True, slots=True)
class _Member:
    """A zip member and where it goes, relative to the environment's prefix. ``script`` is its text where that is rewritten."""

    info: zipfile.ZipInfo
    path: str
    executable: bool
    script: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    """A file that an installer makes, relative to the environment's prefix."""

    path: str
    data: bytes
    executable: bool = False


class WheelReader:
    """Reads wheels. Stateless; safe in any thread."""

    def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
        """See :class:`builder.layers.entry.PackageReader`. RECORD's size is that in the wheel, about what it will be."""
        with _Wheel(fetched, context) as wheel:
            root = wheel.root
            entries = [IndexEntry(root + m.path, "file", m.info.file_size) for m in wheel.members]
            entries += [IndexEntry(root + m.path, "file", len(m.data)) for m in wheel.made]
            entries.append(IndexEntry(root + wheel.record_path, "file", wheel.record_size))
            return PackageIndex(tuple(entries), notes=tuple(_case_notes(entries)))

    def entries(
        self, fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[Entry]:
        """See :class:`builder.layers.entry.PackageReader`."""
        with _Wheel(fetched, context) as wheel:
            root = wheel.root
            for m in wheel.members:
                if root + m.path not in leave_out:
                    content, size = wheel.content(m)
                    yield Entry(
                        root + m.path, "file", 0o755 if m.executable else 0o644, size, content=content
                    )
            for made in (*wheel.made, _Made(wheel.record_path, wheel.record())):
                if root + made.path not in leave_out:
                    mode = 0o755 if made.executable else 0o644
                    yield Entry(root + made.path, "file", mode, len(made.data), content=Inline(made.data))


def _case_notes(entries: list[IndexEntry]) -> Iterator[str]:
    lower: dict[str, str] = {}
    for e in entries:
        if (other := lower.setdefault(e.path.lower(), e.path)) != e.path:
            yield f"/{other} and /{e.path} differ in case only"


class _Wheel:
    """One open wheel."""

    def __init__(self, fetched: Fetched, context: LinkContext) -> None:
        self._fetched = fetched
        self._context = context
        self._path = fetched.path
        self.root = context.prefix.strip("/") + "/"
        if not context.python:
            raise LayerError(
                f"{fetched.package.filename}: the environment has pip packages but no python",
                "add python to the environment's conda dependencies",
            )
        try:
            self._distribution = parse_wheel_filename(fetched.package.filename).distribution
            self._zip = zipfile.ZipFile(self._path)
        except (ValueError, zipfile.BadZipFile, OSError, NotImplementedError, struct.error) as e:
            raise self._fault(f"not a wheel: {e}") from None
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            self._zip.close()
            raise
        try:
            self._read()
        except BaseException:
            self.__exit__()
            raise

    def _read(self) -> None:
        infos = [i for i in self._zip.infolist() if not i.is_dir()]
        self._infos = {i.filename: i for i in infos}
        if len(self._infos) != len(infos):
            raise self._fault(f"{_twice([i.filename for i in infos])!r} stands twice")
        self._size = os.fstat(self._fd).st_size
        self._dist_info = self._find_dist_info()
        self._data = self._dist_info.removesuffix(".dist-info") + ".data/"
        self._check_version()
        self.record_path = f"{self._context.site_packages}/{self._dist_info}/RECORD"
        entry_points = self._entry_points()
        self.members = self._members({m.path for m in entry_points})
        self.made = [*entry_points, *self._metadata()]
        places = [m.path for m in self.members] + [m.path for m in self.made] + [self.record_path]
        if len(set(places)) != len(places):
            raise self._fault(f"two members go to {_twice(places)!r}")

    def __enter__(self) -> _Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        os.close(self._fd)

    def _fault(self, what: str) -> LayerError:
        return LayerError(
            f"{self._fetched.package.filename}: {what}",
            "the wheel is damaged or hostile: fetch it again, lock another version, or ask its makers",
        )

    def _find_dist_info(self) -> str:
        tops = {n.partition("/")[0] for n in self._infos if ".dist-info/" in n}
        tops = {t for t in tops if t.endswith(".dist-info")}
        if len(tops) != 1:
            raise self._fault(f"{len(tops)} .dist-info folders, not 1")
        top = tops.pop()
        name = top.removesuffix(".dist-info").partition("-")[0]
        if canonicalize_name(name) != canonicalize_name(self._distribution):
            raise self._fault(f"its metadata is that of {name!r}")
        return top

    def _check_version(self) -> None:
        version = BytesHeaderParser().parsebytes(self._dist_info_file("WHEEL")).get("Wheel-Version", "")
        if version.strip().partition(".")[0] != "1":
            raise self._fault(f"Wheel-Version {version!r}; 1.x is known")

    def _dist_info_file(self, name: str) -> bytes:
        member = f"{self._dist_info}/{name}"
        if member not in self._infos:
            raise self._fault(f"no {member}")
        return self._load(self._infos[member])

    def _load(self, info: zipfile.ZipInfo, most: int = -1) -> bytes:
        """A member's content, or its first ``most`` bytes."""
        try:
            with self._zip.open(info) as f:
                return f.read(most)
        except Exception as e:  # zipfile raises zlib.error, lzma's, NotImplementedError, RuntimeError (encrypted) and its own
            raise self._fault(f"{info.filename!r} cannot be read: {e}") from None

    def _members(self, entry_points: set[str]) -> list[_Member]:
        members = []
        own = self._dist_info + "/"
        for name, info in self._infos.items():
            mode = info.external_attr >> 16
            if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
                kind = "symlink" if stat.S_ISLNK(mode) else "special file"
                raise self._fault(f"{name!r} is a {kind}, which wheels cannot hold")
            if info.flag_bits & 1:
                raise self._fault(f"{name!r} is encrypted")
            try:
                check_path(name)
            except LayerError:
                raise self._fault(f"unsafe member {name!r}") from None
            if "\\" in name:
                raise self._fault(f"{name!r} has a backslash")
            if name.startswith(own) and name[len(own) :] in _INSTALLERS:
                continue
            if "__pycache__/" in name and "__pycache__" in name.split("/"):
                continue  # as installer does: bytecode that nobody can read is not installed
            executable = stat.S_ISREG(mode) and bool(mode & 0o111)
            path, script = self._place(name)
            if not script:
                members.append(_Member(info, path, executable))
            elif (
                path not in entry_points
            ):  # an entry point's wrapper that an old build tool wrote: pip leaves it out too
                members.append(_Member(info, path, True, self._rewritten(info)))
        return members

    def _place(self, name: str) -> tuple[str, bool]:
        """Where a member goes below the prefix, and whether it is a script. purelib and platlib are one folder."""
        site = self._context.site_packages
        if not name.startswith(self._data):
            return f"{site}/{name}", False
        scheme, _, rest = name[len(self._data) :].partition("/")
        if not rest or scheme not in SCHEME_NAMES:
            raise self._fault(f"{name!r} is in no known scheme ({', '.join(SCHEME_NAMES)})")
        if scheme == "scripts":
            return f"bin/{rest}", True
        if scheme == "data":
            return rest, False
        if scheme == "headers":
            return f"include/python{self._context.python}/{self._distribution}/{rest}", False
        return f"{site}/{rest}", False

    def _rewritten(self, info: zipfile.ZipInfo) -> bytes | None:
        """A .data/scripts file that begins with ``#!python``, with the image's interpreter (PEP 427); None for any other."""
        if self._load(info, len(_ANY_SHEBANG)) != _ANY_SHEBANG or info.file_size > _MAX_SCRIPT:
            return None
        rest = self._load(info).partition(b"\n")[2]
        return self._shebang() + rest

    def _shebang(self) -> bytes:
        """The first line (or lines, for a long path) as installer writes it for an entry point."""
        _, wrapper = Script("x", "x", "x", "console").generate(self._context.interpreter, "posix")
        return wrapper[: wrapper.index(b"# -*- coding")]

    def content(self, member: _Member) -> tuple[Content, int]:
        """A member's content and its size as installed."""
        info = member.info
        if member.script is not None:
            return Inline(member.script), len(member.script)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return Deflated(self._path, self._offset(info), info.compress_size, info.CRC), info.file_size
        if info.compress_type == zipfile.ZIP_STORED:
            if info.compress_size != info.file_size:
                raise self._fault(f"{info.filename!r} has two sizes")
            return Range(self._path, self._offset(info)), info.file_size
        data = self._load(info)
        return Inline(data), len(data)

    def _offset(self, info: zipfile.ZipInfo) -> int:
        """Where a member's bytes begin, by its local header, which must be that of the same member."""
        name = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
        block = os.pread(self._fd, _LOCAL_HEADER + len(name), info.header_offset)
        if block[:4] != b"PK\x03\x04" or block[_LOCAL_HEADER:] != name:
            raise self._fault(f"{info.filename!r} has no local header of its own")
        length, extra = struct.unpack("<HH", block[26:30])
        offset = info.header_offset + _LOCAL_HEADER + int(length) + int(extra)
        if length != len(name) or offset + info.compress_size > self._size:
            raise self._fault(f"{info.filename!r} reaches beyond the archive")
        return offset

    def _entry_points(self) -> list[_Made]:
        """The scripts of entry points."""
        if f"{self._dist_info}/entry_points.txt" not in self._infos:
            return []
        made = {}
        try:
            for name, module, attribute, section in parse_entrypoints(
                self._dist_info_file("entry_points.txt").decode()
            ):
                filename, data = Script(name, module, attribute, section).generate(
                    self._context.interpreter, "posix"
                )
                if "/" in filename:
                    raise self._fault(f"the entry point {name!r} has a slash")
                check_path(filename)
                made[filename] = _Made(f"bin/{filename}", data, executable=True)
        except (configparser.Error, UnicodeDecodeError, AssertionError) as e:
            raise self._fault(
                f"entry_points.txt cannot be read: {str(e) or 'an entry point is not MODULE:FUNCTION'}"
            ) from None
        return list(made.values())

    def _metadata(self) -> list[_Made]:
        folder = f"{self._context.site_packages}/{self._dist_info}"
        made = [_Made(f"{folder}/INSTALLER", b"builder\n")]
        if self._fetched.package.name in self._context.requested:
            made.append(_Made(f"{folder}/REQUESTED", b""))
        return made

    @property
    def record_size(self) -> int:
        """Bytes of the wheel's own RECORD."""
        info = self._infos.get(f"{self._dist_info}/RECORD")
        if info is None:
            raise self._fault(f"no {self._dist_info}/RECORD")
        return info.file_size

    def record(self) -> bytes:
        """RECORD for what is installed: the wheel's own hashes under their installed paths, in the archive's order."""
        known = self._hashes()
        lines: list[tuple[str, str, int | str]] = []
        for m in self.members:
            if m.script is not None:
                lines.append((self._recorded(m.path), _hash(m.script), len(m.script)))
            else:
                digest = known.get(m.info.filename) or _hash(self._load(m.info))
                lines.append((self._recorded(m.path), digest, m.info.file_size))
        lines += [(self._recorded(m.path), _hash(m.data), len(m.data)) for m in self.made]
        lines.append((f"{self._dist_info}/RECORD", "", ""))
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(lines)
        return out.getvalue().encode()

    def _hashes(self) -> dict[str, str]:
        try:
            text = self._dist_info_file("RECORD").decode()
            if re.search('["\r]', text) is None:  # the common case, five times as fast
                rows = [line.rsplit(",", 2) for line in text.split("\n") if line]
            else:
                rows = list(csv.reader(io.StringIO(text)))
        except (UnicodeDecodeError, csv.Error) as e:
            raise self._fault(f"{self._dist_info}/RECORD cannot be read: {e}") from None
        return {row[0]: row[1] for row in rows if len(row) == 3}

    def _recorded(self, path: str) -> str:
        """A path below the prefix as RECORD writes it: relative to site-packages."""
        site = self._context.site_packages + "/"
        return path[len(site) :] if path.startswith(site) else "../" * site.count("/") + path


def _hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _twice(names: list[str]) -> str:
    return next(n for n, count in Counter(names).items() if count > 1)
