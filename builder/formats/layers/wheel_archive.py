"""Opens a wheel: a zip archive with one ``.dist-info`` folder (PEP 427).

Checks its members, and unpacks nothing.

The archive's sha256 is locked and was checked when the wheel was fetched. The CRC of each member is
checked when its layer is written.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from email.parser import BytesHeaderParser
from typing import IO, cast

from installer.utils import parse_wheel_filename
from packaging.utils import canonicalize_name

from builder.core.errors import LayerError
from builder.core.model import Fetched
from builder.core.store.files import CHUNK
from builder.formats.layers import bounds

from .entry import Content, Deflated, Range
from .tar import is_safe
from .zips import UNSUPPORTED, ZIP_ERRORS, check_size, fault, open_zip

#: A zip member's local header, before its name.
_LOCAL_HEADER = struct.Struct("<6xHH4xIIIHH")
#: Flag bits of a zip member.
_ENCRYPTED, _DATA_DESCRIPTOR, _UTF8 = 0x1, 0x8, 0x800
#: A size in a local header whose value is in a zip64 field.
_IN_ZIP64 = 0xFFFFFFFF


def duplicate(names: Sequence[str]) -> str | None:
    """Return the first name that appears more than once, or None."""
    if len(set(names)) == len(names):
        return None
    return next(name for name, count in Counter(names).items() if count > 1)


class WheelArchive(contextlib.AbstractContextManager["WheelArchive"]):
    """An open wheel. Use as a context manager.

    Raises:
        LayerError: the file is not a wheel, or holds members that a wheel must not hold.
    """

    def __init__(self, fetched: Fetched) -> None:
        self._fetched = fetched
        self._path = fetched.path
        with contextlib.ExitStack() as opened:
            try:
                self.distribution = parse_wheel_filename(fetched.package.filename).distribution
                self._zip = opened.enter_context(open_zip(self._path))
                self._fd = cast(IO[bytes], self._zip.fp).fileno()
                self._size = os.fstat(self._fd).st_size
            except ZIP_ERRORS as e:
                raise self.fault(f"not a wheel: {e}") from None
            self.members = self._checked_members()
            """By name, in the archive's order, without directories."""
            self.dist_info = self._find_dist_info()
            """Name of the ``.dist-info`` folder."""
            self._check_version()
            self._opened = opened.pop_all()

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def fault(self, what: str, *hint: str) -> LayerError:
        """Return the error for a wheel that cannot be installed."""
        return fault(self._fetched.package, what, *hint)

    def metadata(self, name: str) -> zipfile.ZipInfo:
        """Return a member of the ``.dist-info`` folder.

        Raises:
            LayerError: the wheel does not have it.
        """
        member = f"{self.dist_info}/{name}"
        if member not in self.members:
            raise self.fault(f"no {member}")
        return self.members[member]

    def read(self, member: zipfile.ZipInfo, most: int) -> bytes:
        """Return a member's content.

        Raises:
            LayerError: the member is damaged, or has more than ``most`` bytes.
        """
        check_size(self._fetched.package, repr(member.filename), member.file_size, most)
        return b"".join(self.chunks(member))

    def start(self, member: zipfile.ZipInfo, size: int) -> bytes:
        """Return the first ``size`` bytes of a member.

        Raises:
            LayerError: the member is damaged.
        """
        return next(self.chunks(member, size), b"")

    def chunks(self, member: zipfile.ZipInfo, size: int = CHUNK) -> Iterator[bytes]:
        """Yield the content of a member: no more than its declared size. zipfile checks the CRC.

        Raises:
            LayerError: the member is damaged.
        """
        try:
            with self._zip.open(member) as f:
                while chunk := f.read(size):
                    yield chunk
        except ZIP_ERRORS as e:
            raise self.fault(f"{member.filename!r} cannot be read: {e}") from None

    def content(self, member: zipfile.ZipInfo) -> tuple[Content, int]:
        """Return a member's content, as a reference into the archive, and its size in bytes.

        Raises:
            LayerError: the member is damaged.
        """
        offset = self._offset(member)
        if member.compress_type == zipfile.ZIP_DEFLATED:
            return Deflated(self._path, offset, member.compress_size, member.CRC), member.file_size
        return Range(self._path, offset, crc32=member.CRC), member.file_size

    def _offset(self, member: zipfile.ZipInfo) -> int:
        """Return the offset of a member's bytes.

        Its local header must be that of the same member, and must come with its content before the
        next member: else a small archive could hold the same bytes many times.
        """
        name = member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
        end = self._ends[member.header_offset]
        if not 0 <= member.header_offset < self._size:
            raise self.fault(f"{member.filename!r} is not inside the archive")
        at, skipped = member.header_offset, _LOCAL_HEADER.size
        block = os.pread(self._fd, skipped + len(name), at)
        if block[:4] != b"PK\x03\x04" or block[skipped:] != name:
            raise self.fault(f"{member.filename!r} has no separate local header")
        flags, method, crc, packed, size, length, extra = _LOCAL_HEADER.unpack_from(block)
        offset = at + skipped + int(length) + int(extra)
        if length != len(name) or offset + member.compress_size > end:
            raise self.fault(f"{member.filename!r} overlaps the next member")
        here, there = (crc, packed, size), (member.CRC, member.compress_size, member.file_size)
        differs = any(x not in (y, _IN_ZIP64) for x, y in zip(here, there, strict=True))
        if method != member.compress_type or (differs and not flags & _DATA_DESCRIPTOR):
            raise self.fault(f"{member.filename!r} is described in two different ways")
        return offset

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        every = self._zip.infolist()
        if len(every) > bounds.MAX_MEMBERS:
            what = f"{len(every)} members; at most {bounds.MAX_MEMBERS} are allowed"
            raise self.fault(what, UNSUPPORTED)
        if "" in self._zip.namelist():
            raise self.fault("a member has no name")
        starts = sorted({i.header_offset for i in every})
        self._ends = dict(zip(starts, [*starts[1:], self._zip.start_dir], strict=False))
        infos = [i for i in every if not i.is_dir()]
        size, most = sum(i.file_size for i in infos), bounds.most_unpacked(self._size)
        if size > most:
            what = f"it unpacks to {size} bytes; at most {most} are allowed for its size"
            raise self.fault(what, UNSUPPORTED)
        names = [i.filename for i in infos]
        repeated = duplicate(names)
        if repeated is not None:
            raise self.fault(f"{repeated!r} appears twice")
        for info in infos:
            self._check_member(info)
        return dict(zip(names, infos, strict=True))

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        mode = info.external_attr >> 16
        if name != info.orig_filename:
            raise self.fault(f"{info.orig_filename!r} has a NUL")
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            kind = "symlink" if stat.S_ISLNK(mode) else "special file"
            raise self.fault(f"{name!r} is a {kind}, which a wheel must not contain")
        if info.flag_bits & _ENCRYPTED:
            raise self.fault(f"{name!r} is encrypted", UNSUPPORTED)
        if not is_safe(name):
            raise self.fault(f"unsafe member {name[:200]!r}")
        if "\\" in name:
            raise self.fault(f"{name!r} has a backslash")
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise self.fault(f"{name!r} has two different sizes")

    def _find_dist_info(self) -> str:
        tops = {name.partition("/")[0] for name in self.members if ".dist-info/" in name}
        found = [top for top in tops if top.endswith(".dist-info")]
        if len(found) != 1:
            raise self.fault(f"{len(found)} .dist-info folders, not 1")
        name = found[0].removesuffix(".dist-info").partition("-")[0]
        if canonicalize_name(name) != canonicalize_name(self.distribution):
            raise self.fault(f"its metadata is that of {name!r}")
        return found[0]

    def _check_version(self) -> None:
        raw = self.read(self.metadata("WHEEL"), bounds.MAX_METADATA)
        version = str(BytesHeaderParser().parsebytes(raw).get("Wheel-Version", ""))
        if version.strip().partition(".")[0] != "1":
            raise self.fault(f"Wheel-Version {version!r} is not supported, only 1.x", UNSUPPORTED)
