"""Reads the headers of a tar: ustar, pax (global and extended headers), GNU long names and sparse files.

Every tar that builder reads passes through here: layers, conda packages, archives of images and
mmdebstrap's output. Python's ``tarfile`` is not used: it reads an extended header of any size into
memory, and takes several times as long.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

#: Returns as many bytes of an uncompressed tar, or fewer at its end.
Read = Callable[[int], bytes]

BLOCK = 512
#: Bytes of all extended headers before one member, of all global headers, and of the map of a sparse file.
#: Go's ``archive/tar``, with which containerd, Docker and podman read layers, takes 1 MiB too.
MAX_EXTENDED = 1 << 20
#: Bytes of a path or link target: Linux takes no longer ones (PATH_MAX, with the NUL at the end).
MAX_PATH = 4095
#: The kernel takes as many bits of the number of a user or group. All of them mean "none", and become 0.
_ID_BITS = 2**32 - 1
#: Bytes of a file are below this: the kernel's file offsets are signed.
_MAX_SIZE = 2**63
#: Times (seconds from 1970, before or after) are below this: every file system can hold them, or cuts them.
#: Others become 0, as in Docker.
_MAX_TIME = 2**40

FILE, HARDLINK, SYMLINK, DIRECTORY = b"0", b"1", b"2", b"5"
#: Type flags that older tars use for ordinary files.
_OLD_FILE, _CONTIGUOUS_FILE = b"\0", b"7"
_GLOBAL_PAX, _PAX, _LONG_NAME, _LONG_TARGET, _SPARSE = b"g", b"x", b"L", b"K", b"S"
_EXTENDED = (_GLOBAL_PAX, _PAX, _LONG_NAME, _LONG_TARGET)
_PAX_KEYS = frozenset({b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"})
_XATTR, _SPARSE_KEY = b"SCHILY.xattr.", b"GNU.sparse."
#: The map of a sparse file; format 0.0 repeats two keys, where 0.1 has one.
_MAP, _MAP_PARTS = b"GNU.sparse.map", (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
_OCTAL = re.compile(rb"[ \0]*([0-7]*)(?:[ \0].*)?", re.DOTALL)
_PAX_LENGTH = re.compile(rb"([0-9]{1,10}) ")
_DECIMAL = re.compile(rb"-?[0-9]{1,20}")
_PADDING = re.compile(rb"\0*\Z")
#: Where numbers are in a header.
_PLACES = {b"uid": slice(108, 116), b"gid": slice(116, 124), b"size": slice(124, 136)}


class TarError(Exception):
    """A tar is damaged, or has a header that is not supported or is too large."""


class TarLimit(TarError):
    """A tar is beyond a limit."""


class TarEnd(TarError):
    """A tar ends too early: whoever writes it may say why."""

    def __init__(self) -> None:
        super().__init__("it ends too early")


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
    stored: int
    """Bytes of content in the tar, without padding: as ``size``, but for sparse files."""
    size: int
    """Bytes of content; 0 for all but a file, although some tars repeat the size in hard links."""
    mtime: float
    """Seconds since 1970."""
    target: str
    """The text of a symlink, or the path that a hard link repeats; empty for other kinds."""
    xattrs: Mapping[str, str] = field(default_factory=dict)
    """pax records of extended attributes, with their whole keys: ``SCHILY.xattr.NAME``."""
    extents: Sequence[tuple[int, int]] | None = None
    """Of a sparse file: offset and length of what the tar holds, in order. The rest are zeros."""


def read_headers(read: Read) -> Iterator[TarHeader]:
    """Yield the members of a tar, which is read from its start to its end.

    The caller has to read or skip a member's content (:attr:`TarHeader.stored`), and its padding up
    to :data:`BLOCK`, before the next member.

    Raises:
        TarError: the tar is damaged or ends too early, or a header is not supported or too large.
    """
    pax: dict[bytes, bytes] = {}  # of extended headers: valid for the next member
    left = shared_left = MAX_EXTENDED
    while True:
        block = read(BLOCK)
        if not any(block):
            return  # two zero blocks end a tar; one or none is enough for every reader
        if len(block) < BLOCK:
            raise TarEnd
        if not _is_header(block):
            raise TarError("not a tar: wrong checksum of a header")
        flag = block[156:157]
        if flag not in _EXTENDED:
            yield _sparse(read, pax, _header(block, pax))
            pax, left = {}, MAX_EXTENDED
            continue
        size = _number(block[124:136])
        allowed = shared_left if flag == _GLOBAL_PAX else left
        if not 0 <= size <= allowed:
            raise TarLimit(f"a tar header of {size} bytes; at most {MAX_EXTENDED} are allowed")
        records = _extended(read, flag, size)
        if flag == _GLOBAL_PAX:
            shared_left -= size + BLOCK  # the block too, so that a chain of empty headers ends
        else:
            left -= size + BLOCK
            pax |= records


def _is_header(block: bytes) -> bool:
    """Return whether a block has the right checksum of a header; old tars add up signed bytes.

    Raises:
        TarError: the checksum is not a number.
    """
    counted = block[:148] + b" " * 8 + block[156:]
    difference = sum(counted) - _number(block[148:156])
    return not difference or difference == 256 * sum(byte > 127 for byte in counted)


def _extended(read: Read, flag: bytes, size: int) -> dict[bytes, bytes]:
    """Return the records of an extended header."""
    data = _whole(read, size + -size % BLOCK)[:size]
    if flag == _LONG_NAME:
        return {b"path": data.rstrip(b"\0")}
    if flag == _LONG_TARGET:
        return {b"linkpath": data.rstrip(b"\0")}
    return _pax_records(data)


def _whole(read: Read, size: int) -> bytes:
    """Return the next bytes. Raises TarError if there are fewer."""
    data = read(size)
    if len(data) < size:
        raise TarEnd
    return data


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """Return the known records of a pax header: ``LENGTH KEY=VALUE\\n``, LENGTH of all of it.

    A record without a value has none, as in Go.
    """
    records: dict[bytes, bytes] = {}
    parts = []
    at = 0
    while not _PADDING.match(data, at):
        length = _PAX_LENGTH.match(data, at)
        end = at + int(length[1]) if length else 0
        if length is None or not length.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise TarError("a damaged pax header")
        key, _, value = data[length.end() : end - 1].partition(b"=")
        if key in _MAP_PARTS:
            parts.append(value)
        elif value and (key in _PAX_KEYS or key.startswith((_XATTR, _SPARSE_KEY))):
            records[key] = value
        at = end
    return {**records, _MAP: b",".join(parts)} if parts else records


def _header(block: bytes, pax: Mapping[bytes, bytes]) -> TarHeader:
    """Return the member that a header and the extended headers before it describe."""
    name = _name(block, pax)
    path = _path(name, name)
    flag = _flag(block[156:157], name)
    if flag == _SPARSE:
        raise TarError(f"{path!r} is a sparse file of tar's GNU format, which no engine unpacks")
    try:
        uid, gid, size = (
            _decimal(pax[key]) if key in pax else _number(block[place])
            for key, place in _PLACES.items()
        )
        uid, gid = ((owner & _ID_BITS) % _ID_BITS for owner in (uid, gid))
        mtime = float(pax[b"mtime"]) if b"mtime" in pax else _number(block[136:148])
    except ValueError:
        raise TarError(f"{path!r} has a damaged header") from None
    if not 0 <= size < _MAX_SIZE:
        raise TarError(f"{path!r} has an impossible size")
    if not math.isfinite(mtime):
        raise TarError(f"{path!r} has an impossible time")
    mtime = mtime if abs(mtime) < _MAX_TIME else 0
    is_link = flag in (HARDLINK, SYMLINK)
    target = _path(pax.get(b"linkpath") or _field(block[157:257]), name) if is_link else ""
    xattrs = {os.fsdecode(k): os.fsdecode(v) for k, v in pax.items() if k.startswith(_XATTR)}
    mode = _number(block[100:108]) & 0o7777
    size = size if flag == FILE else 0
    return TarHeader(path, flag, mode, uid, gid, size, size, mtime, target, xattrs)


def _sparse(read: Read, pax: Mapping[bytes, bytes], header: TarHeader) -> TarHeader:
    """Return the header; of a sparse file, in a pax format of GNU tar, with its size and map.

    The map is in a pax record (0.0 and 0.1), or before the content (1.0).
    """
    is_newest = pax.get(b"GNU.sparse.major") == b"1"
    if header.flag != FILE or not (is_newest or _MAP in pax):
        return header
    left = header.size
    try:
        size = _decimal(pax.get(b"GNU.sparse.size") or pax.get(b"GNU.sparse.realsize", b"0"))
        if is_newest:
            numbers, used = _leading_map(read)
            left -= used
        else:
            numbers = [_decimal(number) for number in pax[_MAP].split(b",")]
        extents = list(zip(numbers[::2], numbers[1::2], strict=True))
        edges = [edge for offset, length in extents for edge in (offset, offset + length)]
        edges = [0, *edges, size, _MAX_SIZE - 1]
        if edges != sorted(edges) or sum(length for _, length in extents) != left:
            raise ValueError
    except ValueError:
        raise TarError(f"{header.path!r} has a damaged map of its holes") from None
    return replace(header, size=size, stored=left, extents=extents)


def _leading_map(read: Read) -> tuple[list[int], int]:
    """Return the numbers before the content of a sparse file (1.0), and the bytes that they take."""
    data, lines, found = bytearray(), 1, 0
    while found < lines:
        data += _whole(read, BLOCK)
        if len(data) > MAX_EXTENDED:
            raise TarLimit(f"a map of holes with more than {MAX_EXTENDED} bytes")
        found += data.count(b"\n", len(data) - BLOCK)
        if lines == 1 and found:
            lines = 1 + 2 * _decimal(bytes(data[: data.index(b"\n")]))
    return [_decimal(bytes(line)) for line in data.split(b"\n")[1:lines]], len(data)


def _name(block: bytes, pax: Mapping[bytes, bytes]) -> bytes:
    """Return the path of a member, as the tar has it."""
    name = pax.get(b"GNU.sparse.name") or pax.get(b"path")
    if not name and block[257:263] == b"ustar\0" and block[345]:
        return _field(block[345:500]) + b"/" + _field(block[:100])
    return name or _field(block[:100])


def _flag(flag: bytes, name: bytes) -> bytes:
    """Return the type flag of today for that of an older tar."""
    if flag == _OLD_FILE and name.endswith(b"/"):
        return DIRECTORY
    return FILE if flag in (_OLD_FILE, _CONTIGUOUS_FILE) else flag


def _path(value: bytes, member: bytes) -> str:
    """Return a path or a link's target as text. ``member`` is the member's path, for messages."""
    if len(value) > MAX_PATH:
        length = f"{len(value)} bytes; at most {MAX_PATH} are allowed"
        raise TarLimit(f"{_shown(member)} has a path of {length}")
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
