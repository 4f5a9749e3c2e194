"""Opens a wheel: a zip archive with one ``.dist-info`` folder (PEP 427).

Checks its members, and unpacks nothing.

The archive's sha256 is locked and was checked when the wheel was fetched. The CRC of each member is checked
when its layer is written.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Sequence
from email.parser import BytesHeaderParser

from installer.utils import parse_wheel_filename
from packaging.utils import canonicalize_name

from builder.errors import LayerError
from builder.layers.entry import Content, Deflated, Inline, Range
from builder.layers.tar import check_path
from builder.model import Fetched

#: Bytes of a zip member's local header, before its name.
_LOCAL_HEADER = 30
#: Flag bits of a zip member.
_ENCRYPTED, _UTF8 = 0x1, 0x800


def wheel_fault(fetched: Fetched, what: str) -> LayerError:
    """Returns the error for a wheel that cannot be installed."""
    return LayerError(
        f"{fetched.package.filename}: {what}",
        "the wheel is damaged or hostile: fetch it again (builder cache prune), or lock another version",
    )


def duplicate(names: Sequence[str]) -> str | None:
    """Returns the first name that appears more than once, or None."""
    if len(set(names)) == len(names):
        return None
    return next(name for name, count in Counter(names).items() if count > 1)


class WheelArchive:
    """An open wheel. Use as a context manager.

    Raises:
        LayerError: the file is not a wheel, or holds members that a wheel must not hold.
    """

    def __init__(self, fetched: Fetched) -> None:
        self._fetched = fetched
        self._path = fetched.path
        try:
            self.distribution = parse_wheel_filename(fetched.package.filename).distribution
            self._zip = zipfile.ZipFile(self._path)
        except (ValueError, zipfile.BadZipFile, OSError, NotImplementedError, struct.error) as e:
            raise self.fault(f"not a wheel: {e}") from None
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            self._zip.close()
            raise
        try:
            self._size = os.fstat(self._fd).st_size
            self.members = self._checked_members()
            """By name, in the archive's order, without directories."""
            self.dist_info = self._find_dist_info()
            """Name of the ``.dist-info`` folder."""
            self._check_version()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> WheelArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        os.close(self._fd)

    def fault(self, what: str) -> LayerError:
        """Returns the error for a wheel that cannot be installed."""
        return wheel_fault(self._fetched, what)

    def metadata(self, name: str) -> zipfile.ZipInfo:
        """Returns a member of the ``.dist-info`` folder.

        Raises:
            LayerError: the wheel does not have it.
        """
        member = f"{self.dist_info}/{name}"
        if member not in self.members:
            raise self.fault(f"no {member}")
        return self.members[member]

    def read(self, member: zipfile.ZipInfo, limit: int = -1) -> bytes:
        """Returns a member's content, or its first ``limit`` bytes.

        Raises:
            LayerError: the member is damaged.
        """
        try:
            with self._zip.open(member) as f:
                return f.read(limit)
        except (
            Exception
        ) as e:  # zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError and zipfile's own
            raise self.fault(f"{member.filename!r} cannot be read: {e}") from None

    def content(self, member: zipfile.ZipInfo) -> tuple[Content, int]:
        """Returns a member's content, as a reference into the archive where possible, and its size in bytes.

        Raises:
            LayerError: the member is damaged.
        """
        if member.compress_type == zipfile.ZIP_DEFLATED:
            deflated = Deflated(self._path, self._offset(member), member.compress_size, member.CRC)
            return deflated, member.file_size
        if member.compress_type == zipfile.ZIP_STORED:
            if member.compress_size != member.file_size:
                raise self.fault(f"{member.filename!r} has two different sizes")
            return Range(self._path, self._offset(member)), member.file_size
        data = self.read(member)
        return Inline(data), len(data)

    def _offset(self, member: zipfile.ZipInfo) -> int:
        """Returns where a member's bytes begin. Its local header must belong to the same member."""
        name = member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
        block = os.pread(self._fd, _LOCAL_HEADER + len(name), member.header_offset)
        if block[:4] != b"PK\x03\x04" or block[_LOCAL_HEADER:] != name:
            raise self.fault(f"{member.filename!r} has no separate local header")
        length, extra = struct.unpack("<HH", block[26:30])
        offset = member.header_offset + _LOCAL_HEADER + int(length) + int(extra)
        if length != len(name) or offset + member.compress_size > self._size:
            raise self.fault(f"{member.filename!r} ends beyond the end of the archive")
        return offset

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        infos = [i for i in self._zip.infolist() if not i.is_dir()]
        repeated = duplicate([i.filename for i in infos])
        if repeated is not None:
            raise self.fault(f"{repeated!r} appears twice")
        for info in infos:
            self._check_member(info)
        return {i.filename: i for i in infos}

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) and not stat.S_ISREG(mode):
            kind = "symlink" if stat.S_ISLNK(mode) else "special file"
            raise self.fault(f"{name!r} is a {kind}, which a wheel must not contain")
        if info.flag_bits & _ENCRYPTED:
            raise self.fault(f"{name!r} is encrypted")
        try:
            check_path(name)
        except LayerError:
            raise self.fault(f"unsafe member {name!r}") from None
        if "\\" in name:
            raise self.fault(f"{name!r} has a backslash")

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
        header = BytesHeaderParser().parsebytes(self.read(self.metadata("WHEEL")))
        version = header.get("Wheel-Version", "")
        if version.strip().partition(".")[0] != "1":
            raise self.fault(f"Wheel-Version {version!r} is not supported, only 1.x")
