"""Reads the inode and directory tables of a squashfs."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from builder.formats.trees.bounds import MAX_PATH
from builder.formats.trees.member import Kind, Member
from builder.formats.trees.squashfs import format as raw


class InflatedTable:
    """A metadata table in memory, uncompressed, addressed by block and offset."""

    def __init__(self) -> None:
        self.data = bytearray()
        #: Where each block begins in the stored table, and in ``data``.
        self._positions: list[int] = []
        self._starts: list[int] = []

    def add(self, position: int, data: bytes) -> None:
        """Add the content of the block at a position of the stored table."""
        self._positions.append(position)
        self._starts.append(len(self.data))
        self.data += data

    def locate(self, block: int, offset: int) -> int:
        """Return the index in ``data`` of an offset in the block at a position."""
        i = bisect.bisect_left(self._positions, block)
        if i == len(self._positions) or self._positions[i] != block:
            raise ValueError("a reference to a missing block")
        return self._starts[i] + offset


class Listing(NamedTuple):
    """Where the names in a directory are."""

    block: int
    """Position of a metadata block in the directory table."""
    offset: int
    size: int
    """Bytes."""


class Data(NamedTuple):
    """Where the content of a file is."""

    start: int
    """Position of the first data block, from the beginning of the file system."""
    fragment: int
    """The fragment that holds the end of the file, or ``NONE``."""
    offset: int
    """Where the file begins in the fragment."""
    lengths_at: int
    """Where the stored lengths of the data blocks are, in the uncompressed inode table."""


class Inode(NamedTuple):
    """One inode as it was read."""

    number: int
    member: Member | None
    """None for a device node or socket, which trees skip."""
    body: Listing | Data | None
    """Of a directory or file."""


def read_inode(table: InflatedTable, ids: Sequence[int], reference: int, path: str = "") -> Inode:
    """Return the inode at a reference: ``block << 16 | offset``.

    Args:
        table: the inode table.
        ids: the id table.
        reference: where the inode is.
        path: the path of the member.

    Raises:
        ValueError, LookupError, struct.error: the table is damaged.
    """
    at = table.locate(reference >> 16, reference & 0xFFFF)
    type_number, mode, uid, gid, mtime, number = raw.INODE_HEADER.unpack_from(table.data, at)
    at += raw.INODE_HEADER.size
    kind = raw.InodeType(type_number)
    member = Member(path, Kind.FILE, mode & 0o7777, ids[uid], ids[gid], 0, mtime)
    match kind.basic:
        case raw.InodeType.DIRECTORY:
            member.kind = Kind.DIRECTORY
            return Inode(number, member, _directory_body(table, kind, at))
        case raw.InodeType.FILE:
            member.size, body = _file_body(table, kind, at)
            return Inode(number, member, body)
        case raw.InodeType.SYMLINK:
            member.kind, member.mode = Kind.SYMLINK, 0o777
            member.target = _symlink_target(table, at)
        case raw.InodeType.FIFO:
            member.kind = Kind.FIFO
        case raw.InodeType.CHARACTER_DEVICE if raw.DEVICE_INODE.unpack_from(table.data, at)[1] == 0:
            member.kind = Kind.WHITEOUT
        case _:
            return Inode(number, None, None)
    return Inode(number, member, None)


def _directory_body(table: InflatedTable, kind: raw.InodeType, at: int) -> Listing:
    if kind is raw.InodeType.DIRECTORY:
        block, _, size, offset, _ = raw.DIRECTORY_INODE.unpack_from(table.data, at)
    else:
        _, size, block, _, _, offset, _ = raw.LONG_DIRECTORY_INODE.unpack_from(table.data, at)
    # the format counts "." and "..", which are not in the listing
    return Listing(block, offset, size - 3)


def _file_body(table: InflatedTable, kind: raw.InodeType, at: int) -> tuple[int, Data]:
    """Return a file's size, and where its content is."""
    if kind is raw.InodeType.FILE:
        start, fragment, offset, size = raw.FILE_INODE.unpack_from(table.data, at)
        return size, Data(start, fragment, offset, at + raw.FILE_INODE.size)
    start, size, _, _, fragment, offset, _ = raw.LONG_FILE_INODE.unpack_from(table.data, at)
    return size, Data(start, fragment, offset, at + raw.LONG_FILE_INODE.size)


def _symlink_target(table: InflatedTable, at: int) -> str:
    _, length = raw.SYMLINK_INODE.unpack_from(table.data, at)
    at += raw.SYMLINK_INODE.size
    target = bytes(table.data[at : at + min(length, MAX_PATH)])
    if len(target) != length or b"\0" in target:
        raise ValueError(f"a link target of {length} bytes")
    return os.fsdecode(target)


def read_listing(table: InflatedTable, listing: Listing) -> Iterator[tuple[str, int]]:
    """Yield the names in a directory, each with the reference of its inode.

    Args:
        table: the directory table.
        listing: where the names are.

    Raises:
        ValueError, LookupError, struct.error: the table is damaged.
    """
    if listing.size <= 0:
        return
    at = table.locate(listing.block, listing.offset)
    end = at + listing.size
    while at < end:
        count, block, _ = raw.DIRECTORY_HEADER.unpack_from(table.data, at)
        at += raw.DIRECTORY_HEADER.size
        if count >= raw.ENTRIES_PER_HEADER:
            raise ValueError("too many entries")
        for _ in range(count + 1):
            offset, _, _, length = raw.DIRECTORY_ENTRY.unpack_from(table.data, at)
            at += raw.DIRECTORY_ENTRY.size
            name = bytes(table.data[at : at + length + 1])
            at += length + 1
            if name in (b".", b"..") or b"/" in name or b"\0" in name or len(name) != length + 1:
                raise ValueError(f"a file named {name!r}")
            yield os.fsdecode(name), block << 16 | offset
