"""ELF files for tests: shared libraries that need others, and have no code."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_LOAD, _DYNAMIC, _LOADER = 1, 2, 3
_ADDRESS = 0x400000
_NEEDED, _STRTAB, _STRSZ = 1, 5, 10


def elf(needed: Sequence[str], *, strings_last: bool = False, middle: int = 0, loader: str = "") -> bytes:
    """Return a 64-bit library, or a program.

    Args:
        needed: what it needs.
        strings_last: the table of strings comes after the dynamic section, as patchelf writes it.
        middle: bytes between the two.
        loader: of a program; empty: it is a library.
    """
    path = loader.encode() + b"\0" if loader else b""
    count = 3 if loader else 2
    start = 64 + count * 56 + len(path)
    strings, offsets = b"\0", []
    for name in needed:
        offsets.append(len(strings))
        strings += name.encode() + b"\0"
    size = 16 * (len(needed) + 3)
    first = size if strings_last else len(strings)
    table = start + (first + middle if strings_last else 0)
    dynamic = start + (0 if strings_last else first + middle)
    tags = [*((_NEEDED, at) for at in offsets), (_STRTAB, _ADDRESS + table), (_STRSZ, len(strings)), (0, 0)]
    packed = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    parts = (packed, strings) if strings_last else (strings, packed)
    body = parts[0] + bytes(middle) + parts[1]
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    whole = start + len(body)
    segments = _segment(_LOAD, 0, _ADDRESS, whole) + _segment(_DYNAMIC, dynamic, 0, size)
    segments += _segment(_LOADER, start - len(path), 0, len(path)) if loader else b""
    return header + segments + path + body


def _segment(kind: int, offset: int, address: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 4, offset, address, address, size, size, 8)
