"""Reads the headers of a tar: ustar, pax (global and extended headers) and GNU long names.

Every tar that builder reads passes through here: layers, conda packages, archives of images and
mmdebstrap's output. Python's ``tarfile`` is not used: it reads an extended header of any size into
memory, and takes several times as long.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

BLOCK = 512
#: Bytes of all extended headers before one member, and of all global headers. Go's ``archive/tar``, with
#: which containerd, Docker and podman read layers, takes 1 MiB too.
MAX_EXTENDED = 1 << 20
#: Bytes of a path or link target: Linux takes no longer ones (PATH_MAX, with the NUL at the end).
MAX_PATH = 4095
#: Numbers of users and groups are below this; the last one means "none" to the kernel.
_MAX_ID = 2**32 - 1
#: Bytes of a file are below this: the kernel's file offsets are signed.
_MAX_SIZE = 2**63
#: Times (seconds from 1970, before or after) are below this: every file system can hold them, or cuts them.
_MAX_TIME = 2**40

FILE, HARDLINK, SYMLINK, DIRECTORY = b"0", b"1", b"2", b"5"
#: Type flags that older tars use for ordinary files.
_OLD_FILE, _CONTIGUOUS_FILE = b"\0", b"7"
_GLOBAL_PAX, _PAX, _LONG_NAME, _LONG_TARGET, _SPARSE = b"g", b"x", b"L", b"K", b"S"
_EXTENDED = (_GLOBAL_PAX, _PAX, _LONG_NAME, _LONG_TARGET)
_PAX_KEYS = frozenset({b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"})
_XATTR, _SPARSE_KEY = b"SCHILY.xattr.", b"GNU.sparse"
_OCTAL = re.compile(rb"[ \0]*([0-7]*)(?:[ \0].*)?", re.DOTALL)
_PAX_LENGTH = re.compile(rb"([1-9][0-9]{0,9}) ")
_DECIMAL = re.compile(rb"[0-9]{1,20}")
_PADDING = re.compile(rb"\0*\Z")
#: Where numbers are in a header.
_PLACES = {b"uid": slice(108, 116), b"gid": slice(116, 124), b"size": slice(124, 136)}


class TarError(Exception):
    """A tar is damaged, or has a header that is not supported or is too large."""


class TarSource(Protocol):
    """An uncompressed tar that is read from its start to its end."""

    def read_exactly(self, size: int) -> bytes | memoryview:
        """Return ``size`` bytes, or fewer at the end."""

    def skip(self, size: int) -> None:
        """Skip ``size`` bytes. Raises an exception if there are fewer."""


@dataclass(slots=True)
class TarHeader:
    """The header of one member."""

    path: str
    """As in the tar: it may be absolute or contain ``..``. Undecodable bytes are surrogates."""
    flag: bytes
    """The type flag: :data:`FILE`, :data:`HARDLINK`, and so on."""
    mode: int
    """Permission bits, with setuid, setgid and sticky."""
    uid: int
    gid: int
    size: int
    """Bytes of content; 0 for all but a file, although some tars repeat the size in hard links."""
    mtime: float
    """Seconds since 1970."""
    target: str
    """The text of a symlink, or the path that a hard link repeats; empty for other kinds."""
    xattrs: Mapping[str, str] = field(default_factory=dict)
    """pax records of extended attributes, with their whole keys: ``SCHILY.xattr.NAME``."""


def read_headers(source: TarSource) -> Iterator[TarHeader]:
    """Yield the members of a tar.

    The caller has to read or skip a member's content, and its padding up to :data:`BLOCK`, before
    the next member.

    Raises:
        TarError: the tar is damaged or ends too early, or a header is not supported or too large.
    """
    shared: dict[bytes, bytes] = {}  # of global headers: valid for all members that follow
    own: dict[bytes, bytes] = {}  # of extended headers: valid for the next member
    left = shared_left = MAX_EXTENDED
    while True:
        block = bytes(source.read_exactly(BLOCK))
        if len(block) < BLOCK:  # also a zstd frame that was cut: the library takes that for its end
            raise TarError("it ends too early")
        if not any(block):
            return  # two zero blocks end a tar; one is enough for every reader
        if not is_header(block):
            raise TarError("not a tar: wrong checksum of a header")
        flag = block[156:157]
        if flag not in _EXTENDED:
            yield _header(block, {**shared, **own} if shared else own)
            own, left = {}, MAX_EXTENDED
            continue
        size = _number(block[124:136])
        allowed = shared_left if flag == _GLOBAL_PAX else left
        if not 0 <= size <= allowed:
            raise TarError(f"a tar header of {size} bytes; at most {MAX_EXTENDED} are allowed")
        records = _extended(source, flag, size)
        if flag == _GLOBAL_PAX:
            shared_left -= size + BLOCK  # the block too, so that a chain of empty headers ends
            shared |= records
        else:
            left -= size + BLOCK
            own |= records


def is_header(block: bytes) -> bool:
    """Return whether a block has the right checksum of a header.

    Raises:
        TarError: the checksum is not a number.
    """
    # The checksum counts its own 8 bytes as spaces, whose sum is 256.
    return sum(block) - sum(block[148:156]) + 256 == _number(block[148:156])


def _extended(source: TarSource, flag: bytes, size: int) -> dict[bytes, bytes]:
    """Return the records of an extended header."""
    data = bytes(source.read_exactly(size))
    if len(data) < size:
        raise TarError("it ends too early")
    source.skip(-size % BLOCK)
    if flag == _LONG_NAME:
        return {b"path": data.rstrip(b"\0")}
    if flag == _LONG_TARGET:
        return {b"linkpath": data.rstrip(b"\0")}
    return _pax_records(data)


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """Return the known records of a pax header: ``LENGTH KEY=VALUE\\n``, LENGTH of all of it."""
    records: dict[bytes, bytes] = {}
    at = 0
    while not _PADDING.match(data, at):
        length = _PAX_LENGTH.match(data, at)
        end = at + int(length[1]) if length else 0
        if length is None or not length.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise TarError("a damaged pax header")
        key, _, value = data[length.end() : end - 1].partition(b"=")
        if key in _PAX_KEYS or key.startswith((_XATTR, _SPARSE_KEY)):
            records[key] = value
        at = end
    return records


def _header(block: bytes, pax: Mapping[bytes, bytes]) -> TarHeader:
    """Return the member that a header and the extended headers before it describe."""
    name = _name(block, pax)
    path = _path(name, name)
    flag = _flag(block[156:157], name, pax)
    if flag == _SPARSE:
        raise TarError(f"{path!r} is a sparse file, which is not supported")
    try:
        uid, gid, size = (_value(block, pax, key) for key in (b"uid", b"gid", b"size"))
        mtime = float(pax[b"mtime"]) if b"mtime" in pax else _number(block[136:148])
    except ValueError:
        raise TarError(f"{path!r} has a damaged header") from None
    _check_numbers(path, uid, gid, size, mtime)
    is_link = flag in (HARDLINK, SYMLINK)
    target = _path(pax.get(b"linkpath") or _field(block[157:257]), name) if is_link else ""
    xattrs = {os.fsdecode(k): os.fsdecode(v) for k, v in pax.items() if k.startswith(_XATTR)}
    mode = _number(block[100:108]) & 0o7777
    return TarHeader(path, flag, mode, uid, gid, size if flag == FILE else 0, mtime, target, xattrs)


def _name(block: bytes, pax: Mapping[bytes, bytes]) -> bytes:
    """Return the path of a member, as the tar has it."""
    name = pax.get(b"path") or _field(block[:100])
    if b"path" not in pax and block[257:263] == b"ustar\0" and block[345]:
        return _field(block[345:500]) + b"/" + name
    return name


def _flag(flag: bytes, name: bytes, pax: Mapping[bytes, bytes]) -> bytes:
    """Return the type flag of today for that of an older tar, and that of GNU for a sparse file."""
    if any(key.startswith(_SPARSE_KEY) for key in pax):
        return _SPARSE
    if flag == _OLD_FILE and name.endswith(b"/"):
        return DIRECTORY
    return FILE if flag in (_OLD_FILE, _CONTIGUOUS_FILE) else flag


def _value(block: bytes, pax: Mapping[bytes, bytes], key: bytes) -> int:
    """Return an owner or the size. Raises ValueError if the pax header has something else."""
    return _decimal(pax[key]) if key in pax else _number(block[_PLACES[key]])


def _check_numbers(path: str, uid: int, gid: int, size: int, mtime: float) -> None:
    """Raise TarError for numbers that no file can have."""
    if not (0 <= uid < _MAX_ID and 0 <= gid < _MAX_ID and 0 <= size < _MAX_SIZE):
        raise TarError(f"{path!r} has an impossible owner or size")
    if not math.isfinite(mtime) or abs(mtime) >= _MAX_TIME:
        raise TarError(f"{path!r} has an impossible time")


def _path(value: bytes, member: bytes) -> str:
    """Return a path or a link's target as text. ``member`` is the member's path, for messages."""
    if len(value) > MAX_PATH:
        length = f"{len(value)} bytes; at most {MAX_PATH} are allowed"
        raise TarError(f"{_shown(member)} has a path of {length}")
    if b"\0" in value:
        raise TarError(f"{_shown(member)} has a path with a NUL")
    return os.fsdecode(value)


def _shown(path: bytes) -> str:
    text = os.fsdecode(path)
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def _field(field_: bytes) -> bytes:
    return field_.partition(b"\0")[0]


def _decimal(value: bytes) -> int:
    if not _DECIMAL.fullmatch(value):
        raise ValueError(value)
    return int(value)


def _number(field_: bytes) -> int:
    first = field_[0]
    if first in (0x80, 0xFF):  # GNU: base 256, and two's complement
        value = int.from_bytes(field_[1:], "big")
        return value - (1 << 8 * (len(field_) - 1)) if first == 0xFF else value
    octal = _OCTAL.fullmatch(field_)
    if octal is None:
        raise TarError("not a tar: a header has text instead of a number")
    return int(octal[1] or b"0", 8)
