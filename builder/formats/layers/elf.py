"""ELF files: the shared libraries that a file needs (``DT_NEEDED``), and the loader of a program
(``PT_INTERP``).

Only 64-bit little-endian files are read, as all platforms of images have them. Five places of a
file matter::

    header --> program headers --> PT_INTERP, PT_DYNAMIC: DT_NEEDED 1, DT_NEEDED 23, DT_STRTAB ...
    --> strings 1, 23 ...

Files of packages are streams, some of 1 GB. So the parser asks for one place after the other, and
:class:`ElfReader` takes each from the stream as it passes. Only a place that has passed before it
is asked for is read again: the strings, which most linkers write to the beginning of a file.

Offsets and sizes come from a package, so each is compared with the limits below. A file that is cut
off or contradicts itself counts as no ELF file: the loader would not take it either.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Generator

#: The first bytes of a 64-bit little-endian ELF file.
MAGIC = b"\x7fELF\x02\x01"
#: Bytes of the dynamic section: a name needs 16, and real files have less than 4 kB.
MAX_DYNAMIC = 64 << 10
#: Bytes from the first name to the last one: 78 MB in TensorFlow's largest library.
MAX_STRINGS = 128 << 20
#: Bytes of a file name.
_MAX_NAME = 255
_HEADER = struct.Struct("<32xQ16xH6x")
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")
_TAG = struct.Struct("<qQ")
_LOAD, _DYNAMIC, _LOADER = 1, 2, 3
_NEEDED, _STRTAB, _STRSZ = 1, 5, 10

#: File names of libraries: ``libGL.so.1``; the path of a program's loader comes first.
Needed = tuple[str, ...]


class ElfReader:
    """Reads an ELF file whose content passes once, or a second time if necessary."""

    def __init__(self) -> None:
        self.needed: Needed | None = None
        """What the file needs; None if it is no ELF file, or damaged."""
        self._parser = _parse()
        self.wanted: tuple[int, int] | None = next(self._parser)
        """Offset and size of what the parser asks for; None when it has ended."""
        self._kept = bytearray()
        """The first bytes of that."""
        self._position = 0

    def feed(self, data: bytes) -> None:
        """Take the next piece of the content."""
        start, self._position = self._position, self._position + len(data)
        while self.wanted is not None:
            offset, size = self.wanted
            begin, end = offset + len(self._kept), offset + size
            if begin < start:  # it has passed
                return
            self._kept += data[begin - start : end - start]
            if end > self._position:
                return
            self._answer()

    def rewind(self) -> None:
        """Expect the content from its beginning."""
        self._position = 0
        self._kept.clear()

    def _answer(self) -> None:
        content = bytes(self._kept)
        self._kept.clear()
        try:
            self.wanted = self._parser.send(content)
        except StopIteration as result:
            self.wanted, self.needed = None, result.value
        except (struct.error, LookupError, ValueError):
            self.wanted = None


def needed_by(data: bytes) -> Needed | None:
    """Return the names of what a file in memory needs; None if it is no ELF file."""
    reader = ElfReader()
    reader.feed(data)
    reader.rewind()
    reader.feed(data)
    return None if reader.needed is None else tuple(map(posixpath.basename, reader.needed))


def _parse() -> Generator[tuple[int, int], bytes, Needed | None]:
    """Parse a file: yield offset and size of what is needed next, and receive that content.

    Raises:
        struct.error, LookupError, ValueError: the file is damaged.
    """
    header = yield 0, _HEADER.size
    offset, count = _HEADER.unpack(header)
    if not header.startswith(MAGIC):
        return None
    content = yield offset, count * _SEGMENT.size
    segments = list(_SEGMENT.iter_unpack(content))
    place = _first(segments, _LOADER, _MAX_NAME)
    content = (yield place) if place else b""
    loader = (content.partition(b"\0")[0].decode(),) if place else ()
    place = _first(segments, _DYNAMIC, MAX_DYNAMIC)
    content = (yield place) if place else b""  # nothing: linked statically
    tags = list(_TAG.iter_unpack(content))
    names = [value for tag, value in tags if tag == _NEEDED]
    if not names:
        return loader
    table, first, last = dict(tags), min(names), max(names)
    size = min(table[_STRSZ], last + _MAX_NAME + 1) - first
    if last >= table[_STRSZ] or size > MAX_STRINGS:
        raise ValueError("the names are outside of the table, or too far apart")
    strings = yield _offset(segments, table[_STRTAB]) + first, size
    starts = [name - first for name in names]
    needed = (strings[at : at + _MAX_NAME + 1].partition(b"\0")[0].decode() for at in starts)
    return (*loader, *needed)


def _first(segments: list[tuple[int, ...]], wanted: int, most: int) -> tuple[int, int] | None:
    """Return offset and size of the first segment of a kind, at most ``most`` bytes of it."""
    places = ((at, min(size, most)) for kind, at, _, size in segments if kind == wanted)
    return next(places, None)


def _offset(segments: list[tuple[int, ...]], address: int) -> int:
    """Return the place in the file of what is loaded to an address."""
    for kind, offset, start, size in segments:
        if kind == _LOAD and start <= address < start + size:
            return offset + address - start
    raise ValueError("no segment has the address")
