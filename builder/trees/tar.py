"""Reads tar headers: ustar, pax (global and extended headers) and GNU long names.

Python's ``tarfile`` is not used: on a layer of tens of thousands of files it takes several times as long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.errors import ImageError
from builder.trees.inflate import InflatingReader
from builder.trees.member import DO_NOT_USE, Kind, Member

BLOCK = 512
_LARGEST_EXTENDED_HEADER = 16 << 20
_GLOBAL_PAX, _PAX, _LONG_NAME, _LONG_TARGET, _SPARSE = b"g", b"x", b"L", b"K", b"S"
_EXTENDED_HEADERS = (_GLOBAL_PAX, _PAX, _LONG_NAME, _LONG_TARGET)
#: Type flags that older tars use for ordinary files.
_OTHER_FILES = (b"\0", b"7")
_MARKERS = (Kind.WHITEOUT, Kind.OPAQUE)
_KINDS: Mapping[bytes, Kind] = {
    **{kind.value: kind for kind in Kind if kind not in _MARKERS},
    **dict.fromkeys(_OTHER_FILES, Kind.FILE),
}


def read_members(source: InflatingReader, path: Path) -> Iterator[Member]:
    """The members of a tar, with their paths as the tar has them.

    The caller has to read or skip a member's content, and its padding up to :data:`BLOCK`, before the next
    member.

    Args:
        source: the uncompressed tar.
        path: the layer's blob, for messages.

    Raises:
        ImageError: the tar is damaged, or has a member that layers may not hold.
    """
    shared: dict[str, str] = {}  # of global headers: valid for all members that follow
    own: dict[str, str] = {}  # of extended headers: valid for the next member
    while True:
        block = bytes(source.read_exactly(BLOCK))
        if len(block) < BLOCK:  # also a zstd frame that was cut: the library takes that for its end
            raise ImageError(f"{path} ends too early", DO_NOT_USE)
        if not any(block):
            return  # two zero blocks end a tar; one is enough for every reader
        _check_sum(block, path)
        flag = block[156:157]
        if flag in _EXTENDED_HEADERS:
            records = _read_extended_header(source, flag, _number(block[124:136], path), path)
            (shared if flag == _GLOBAL_PAX else own).update(records)
            continue
        yield _member(block, {**shared, **own} if shared else own, path)
        own = {}


def _check_sum(block: bytes, path: Path) -> None:
    """The checksum of a header counts the checksum's own 8 bytes as spaces, whose sum is 256."""
    if sum(block[:148]) + 256 + sum(block[156:]) != _number(block[148:156], path):
        raise ImageError(f"{path} is not a tar: wrong checksum of a header", DO_NOT_USE)


def _read_extended_header(source: InflatingReader, flag: bytes, size: int, path: Path) -> dict[str, str]:
    if size > _LARGEST_EXTENDED_HEADER:
        raise ImageError(f"{path}: a tar header of {size} bytes", DO_NOT_USE)
    data = bytes(source.read_exactly(size))
    source.skip(-size % BLOCK)
    if flag == _LONG_NAME:
        return {"path": os.fsdecode(data.rstrip(b"\0"))}
    if flag == _LONG_TARGET:
        return {"linkpath": os.fsdecode(data.rstrip(b"\0"))}
    return _pax_records(data, path)


def _member(block: bytes, pax: Mapping[str, str], path: Path) -> Member:
    """The member that a header and the extended headers before it describe."""
    flag = block[156:157]
    name = pax.get("path") or _text(block[:100])
    if "path" not in pax and block[257:263] == b"ustar\0" and block[345]:
        name = f"{_text(block[345:500])}/{name}"
    if flag == _SPARSE or any(key.startswith("GNU.sparse") for key in pax):
        raise ImageError(f"{path}: {name} is a sparse file, which layers may not hold", DO_NOT_USE)
    kind = _KINDS.get(flag)
    if kind is None:
        raise ImageError(f"tar member {name!r} is of unknown type {flag!r}", DO_NOT_USE)
    try:
        member = Member(
            name,
            kind,
            mode=_number(block[100:108], path) & 0o7777,
            uid=int(pax.get("uid", _number(block[108:116], path))),
            gid=int(pax.get("gid", _number(block[116:124], path))),
            size=int(pax.get("size", _number(block[124:136], path))),
            mtime=float(pax.get("mtime", _number(block[136:148], path))),
            target=pax.get("linkpath") or _text(block[157:257]),
        )
    except ValueError:
        raise ImageError(f"{path}: {name} has a damaged header", DO_NOT_USE) from None
    if member.size < 0:
        raise ImageError(f"{path}: {name} has a damaged header", DO_NOT_USE)
    if kind is not Kind.FILE:
        member.size = 0  # some tars repeat the size of the file that a hard link names
    return member


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])


def _number(field: bytes, path: Path) -> int:
    if field[0] & 0x80:  # GNU: base 256
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise ImageError(f"{path} is not a tar: {field!r} is not a number", DO_NOT_USE) from None


def _pax_records(data: bytes, path: Path) -> dict[str, str]:
    """The records of a pax header: ``LENGTH KEY=VALUE\\n``, where LENGTH counts the whole record."""
    records: dict[str, str] = {}
    while data.strip(b"\0"):
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or not len(length) < int(length) <= len(data):
            raise ImageError(f"{path} has a damaged pax header", DO_NOT_USE)
        key, _, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
        records[os.fsdecode(key)] = os.fsdecode(value)
        data = data[int(length) :]
    return records
