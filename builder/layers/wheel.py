"""Wheels as layer entries, laid out as PyPA ``installer`` lays them out (PEP 427, PEP 376), with nothing unpacked.

Scripts get the image's interpreter, RECORD lists what is installed where, INSTALLER says builder, REQUESTED marks what the
environment file asked for. No bytecode, no time stamps, no paths of this machine.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import BytesHeaderParser

from installer.scripts import Script
from installer.utils import WheelFilename, parse_entrypoints, parse_wheel_filename

from builder.errors import LayerError
from builder.layers.entry import Content, Deflated, Entry, IndexEntry, Inline, LinkContext, PackageIndex, Range
from builder.layers.tar import check_path
from builder.model import Fetched

_LOCAL_HEADER = 30


@dataclass(frozen=True, slots=True)
class _Member:
    """A zip member and where it goes, relative to the environment's prefix."""

    info: zipfile.ZipInfo
    path: str
    executable: bool
    script: bool


class WheelReader:
    """Reads wheels. Stateless; safe in any thread."""

    def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
        """See :class:`builder.layers.entry.PackageReader`."""
        with _Wheel(fetched, context) as wheel:
            entries = [IndexEntry(wheel.image_path(m.path), "file", m.info.file_size) for m in wheel.members]
            entries += [IndexEntry(wheel.image_path(p), "file", len(data)) for p, data, _ in wheel.generated()]
            return PackageIndex(tuple(entries))

    def entries(self, fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """See :class:`builder.layers.entry.PackageReader`."""
        with _Wheel(fetched, context) as wheel:
            for m in wheel.members:
                path = wheel.image_path(m.path)
                if path in leave_out:
                    continue
                content, size = wheel.content(m)
                yield Entry(path, "file", 0o755 if m.executable else 0o644, size, content=content)
            for relative, data, executable in wheel.generated():
                path = wheel.image_path(relative)
                if path not in leave_out:
                    yield Entry(path, "file", 0o755 if executable else 0o644, len(data), content=Inline(data))


class _Wheel:
    """One open wheel."""

    def __init__(self, fetched: Fetched, context: LinkContext) -> None:
        self._fetched = fetched
        self._context = context
        self._path = fetched.path
        name = fetched.package.filename
        if not context.python:
            raise LayerError(
                f"{name}: the environment has pip packages but no python", "add python to the environment's conda dependencies"
            )
        try:
            self._names: WheelFilename = parse_wheel_filename(name)
            self._zip = zipfile.ZipFile(self._path)
        except Exception as e:  # installer and zipfile raise many kinds for damaged files
            raise self._fault(f"not a wheel: {e}") from None
        self._file = self._path.open("rb")
        self._infos = {i.filename: i for i in self._zip.infolist() if not i.is_dir()}
        self._dist_info = self._find_dist_info()
        self._data = self._dist_info.removesuffix(".dist-info") + ".data"
        self._pure = self._metadata("WHEEL").get("Root-Is-Purelib", "true").strip().lower() == "true"
        self._record = self._dist_info + "/RECORD"
        self.members = self._members()
        self._rewritten: dict[str, bytes] = {}

    def __enter__(self) -> _Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def _fault(self, what: str) -> LayerError:
        return LayerError(
            f"{self._fetched.package.filename}: {what}",
            "the wheel is damaged or hostile: fetch it again, lock another version, or ask its makers",
        )

    def image_path(self, relative: str) -> str:
        return f"{self._context.prefix.strip('/')}/{relative}"

    def _find_dist_info(self) -> str:
        tops = {n.split("/", 1)[0] for n in self._infos if n.split("/", 1)[0].endswith(".dist-info")}
        if len(tops) != 1:
            raise self._fault(f"{len(tops)} .dist-info folders, not 1")
        return tops.pop()

    def _metadata(self, name: str) -> dict[str, str]:
        try:
            data = self._zip.read(f"{self._dist_info}/{name}")
        except (KeyError, zipfile.BadZipFile, OSError) as e:
            raise self._fault(f"{self._dist_info}/{name} cannot be read: {e}") from None
        return dict(BytesHeaderParser().parsebytes(data).items())

    def _members(self) -> list[_Member]:
        if len(self._infos) != sum(not i.is_dir() for i in self._zip.infolist()):
            raise self._fault("a member stands twice")
        members = []
        for info in self._infos.values():
            mode = info.external_attr >> 16
            if stat.S_ISLNK(mode):
                raise self._fault(f"{info.filename!r} is a symlink, which wheels cannot hold")
            if info.flag_bits & 1:
                raise self._fault(f"{info.filename!r} is encrypted")
            if "\\" in info.filename:
                raise self._fault(f"{info.filename!r} has a backslash")
            try:
                check_path(info.filename)
            except LayerError:
                raise self._fault(f"unsafe member {info.filename!r}") from None
            if info.filename == self._record or info.filename in (self._record + ".jws", self._record + ".p7s"):
                continue
            if info.filename == f"{self._dist_info}/INSTALLER" or info.filename == f"{self._dist_info}/REQUESTED":
                continue  # an installer's to write
            path, script = self._place(info.filename)
            executable = script or bool(mode & 0o111 and stat.S_ISREG(mode))
            members.append(_Member(info, path, executable, script))
        return members

    def _place(self, name: str) -> tuple[str, bool]:
        """Where a member goes below the prefix, and whether it is a script."""
        site = self._context.site_packages
        if not name.startswith(self._data + "/"):
            return f"{site}/{name}", False
        scheme, _, rest = name[len(self._data) + 1 :].partition("/")
        if not rest:
            raise self._fault(f"{name!r} is in no scheme")
        if scheme in ("purelib", "platlib"):
            return f"{site}/{rest}", False
        if scheme == "scripts":
            return f"bin/{rest}", True
        if scheme == "data":
            return rest, False
        if scheme == "headers":
            return f"include/python{self._context.python}/{self._names.distribution}/{rest}", False
        raise self._fault(f"{name!r} is in the unknown scheme {scheme!r}")

    def content(self, member: _Member) -> tuple[Content, int]:
        """A member's content and its size as installed."""
        info = member.info
        if member.script:
            data = self._script(member)
            return Inline(data), len(data)
        offset = self._data_offset(info)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return Deflated(self._path, offset, info.compress_size, info.CRC), info.file_size
        if info.compress_type == zipfile.ZIP_STORED:
            return Range(self._path, offset), info.file_size
        try:
            data = self._zip.read(info)
        except (NotImplementedError, zipfile.BadZipFile, OSError) as e:
            raise self._fault(f"{info.filename}: {e}") from None
        return Inline(data), len(data)

    def _data_offset(self, info: zipfile.ZipInfo) -> int:
        self._file.seek(info.header_offset)
        block = self._file.read(_LOCAL_HEADER)
        if len(block) != _LOCAL_HEADER or block[:4] != b"PK\x03\x04":
            raise self._fault(f"{info.filename!r} has no local header")
        name, extra = struct.unpack("<HH", block[26:30])
        return info.header_offset + _LOCAL_HEADER + int(name) + int(extra)

    def _script(self, member: _Member) -> bytes:
        """A .data/scripts file: ``#!python`` becomes the image's interpreter (PEP 427)."""
        if member.path not in self._rewritten:
            data = self._zip.read(member.info)
            if data.startswith((b"#!python", b"#!pythonw")):
                _, newline, rest = data.partition(b"\n")
                data = b"#!" + self._context.interpreter.encode() + newline + rest
            self._rewritten[member.path] = data
        return self._rewritten[member.path]

    def generated(self) -> list[tuple[str, bytes, bool]]:
        """What an installer makes: entry point scripts, INSTALLER, REQUESTED, RECORD, as (path, content, executable)."""
        folder = f"{self._context.site_packages}/{self._dist_info}"
        made: list[tuple[str, bytes, bool]] = []
        if f"{self._dist_info}/entry_points.txt" in self._infos:
            text = self._zip.read(f"{self._dist_info}/entry_points.txt").decode()
            for name, module, attribute, section in parse_entrypoints(text):
                filename, data = Script(name, module, attribute, section).generate(self._context.interpreter, "posix")
                if "/" in filename:
                    raise self._fault(f"entry point {name!r} has a slash")
                made.append((f"bin/{filename}", data, True))
        made.append((f"{folder}/INSTALLER", b"builder\n", False))
        if self._fetched.package.name in self._context.requested:
            made.append((f"{folder}/REQUESTED", b"", False))
        made.append((f"{folder}/RECORD", self._record_text(made), False))
        return made

    def _record_text(self, made: list[tuple[str, bytes, bool]]) -> bytes:
        """RECORD for what is installed: the wheel's own hashes under their installed paths."""
        try:
            rows = list(csv.reader(io.StringIO(self._zip.read(self._record).decode())))
        except (KeyError, UnicodeDecodeError, csv.Error) as e:
            raise self._fault(f"{self._record} cannot be read: {e}") from None
        known = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}
        ours = {p: d for p, d, _ in made}
        lines: list[tuple[str, str, str]] = []
        for m in self.members:
            if m.script:
                lines.append((self._recorded(m.path), *_hash(self._script(m))))
            else:
                digest, size = known.get(m.info.filename, ("", ""))
                lines.append((self._recorded(m.path), digest, size or str(m.info.file_size)))
        lines += [(self._recorded(p), *_hash(d)) for p, d in ours.items()]
        lines.append((f"{self._dist_info}/RECORD", "", ""))
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(lines)
        return out.getvalue().encode()

    def _recorded(self, path: str) -> str:
        """A path below the prefix as RECORD writes it: relative to site-packages."""
        site = self._context.site_packages
        if path.startswith(site + "/"):
            return path[len(site) + 1 :]
        return "../" * (site.count("/") + 1) + path


def _hash(data: bytes) -> tuple[str, str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={digest}", str(len(data))


