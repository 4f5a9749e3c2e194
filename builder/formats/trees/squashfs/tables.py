"""The tables that describe a tree in a squashfs being written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from builder.formats.trees.squashfs import format as raw

#: The content of a block. Nobody changes it after it is submitted.
Block = bytes | bytearray | memoryview
Compress = Callable[[Block], bytes]
_LARGEST_SHORT_LISTING = 0xFFFF
_NUMBER_DIFFERENCES = range(-0x8000, 0x8000)


@dataclass(slots=True)
class NewInode:
    """One inode to be written. A file with several names is one node."""

    kind: raw.InodeType
    """A basic type."""
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    children: dict[bytes, NewInode] = field(default_factory=dict)
    """Of a directory, by name."""
    target: bytes = b""
    """Of a symlink."""
    size: int = 0
    """Bytes of a file."""
    start: int = 0
    """Position of a file's first data block, from the beginning of the file system."""
    blocks: list[int] = field(default_factory=list)
    """Stored lengths of a file's data blocks, with
    :data:`~builder.formats.trees.squashfs.format.UNCOMPRESSED_BLOCK`."""
    fragment: int = raw.NONE
    """The fragment that holds a small file, or the end of a file."""
    offset: int = 0
    """Where the file begins in its fragment."""
    links: int = 1
    """Names of a file."""
    number: int = 0
    """The inode number, from 1; 0 until it is assigned."""
    where: tuple[int, int] | None = None
    """Block and offset in the inode table, when it is written."""


def stored(block: Block, compress: Compress, uncompressed: int) -> tuple[Block, int]:
    """Return the bytes to store for a block, and their length as tables hold it.

    Args:
        block: the content.
        compress: compresses it; the content is stored where that makes it no smaller.
        uncompressed: the flag of such a length.
    """
    packed = compress(block)
    if len(packed) < len(block):
        return packed, len(packed)
    return block, len(block) | uncompressed


class MetadataTable:
    """A table in metadata blocks of 8 KiB, each compressed, with the stored length in front."""

    def __init__(self, compress: Compress) -> None:
        self._compress = compress
        self._pending = bytearray()
        self._stored = bytearray()

    @property
    def position(self) -> tuple[int, int]:
        """The position of the next byte's stored block, and the offset in the block."""
        return len(self._stored), len(self._pending)

    def write(self, data: bytes) -> None:
        """Append content."""
        self._pending += data
        while len(self._pending) >= raw.METADATA_SIZE:
            self._flush()

    def finish(self) -> bytes:
        """Return the stored table."""
        if self._pending:
            self._flush()
        return bytes(self._stored)

    def _flush(self) -> None:
        block = bytes(self._pending[: raw.METADATA_SIZE])
        del self._pending[: raw.METADATA_SIZE]
        data, length = stored(block, self._compress, raw.UNCOMPRESSED_METADATA)
        self._stored += raw.METADATA_LENGTH.pack(length)
        self._stored += data


def lookup_table(entries: Iterable[bytes], position: int, compress: Compress) -> tuple[bytes, int]:
    """Return entries of one size in metadata blocks, followed by the positions of these blocks.

    Args:
        entries: of the table.
        position: where the table will be, from the beginning of the file system.
        compress: compresses the blocks.

    Returns:
        The table, and the position of the list of positions; the superblock points at it.
    """
    data = b"".join(entries)
    table, positions = MetadataTable(compress), bytearray()
    for start in range(0, len(data), raw.METADATA_SIZE):
        positions += raw.INDEX_ENTRY.pack(position + table.position[0])
        table.write(data[start : start + raw.METADATA_SIZE])
    blocks = table.finish()
    return blocks + positions, position + len(blocks)


class TreeTables:
    """The inode and directory tables of a tree.

    A directory's listing refers to its children's inodes, and its inode refers to the listing. So
    the tree is written from the leaves up: children, listing, inode. Inode numbers are assigned
    before, in the same order. For ``/a`` with the file ``b`` in it, and the file ``/c``::

        number   inode table     directory table
        1        file b
                                 listing of a:  b -> inode of b
        2        directory a
        3        file c
                                 listing of /:  a -> inode of a,  c -> inode of c
        4        directory /     (the superblock points here)

    A file with several names is numbered and written where it comes first.
    """

    def __init__(self, root: NewInode, compress: Compress) -> None:
        self.inodes = MetadataTable(compress)
        self.directories = MetadataTable(compress)
        #: uids and gids, in the order of their first use, each with its position.
        self.ids: dict[int, int] = {}
        #: The number of inodes.
        self.count = 0
        self._number(root)
        self._write(root, self.count + 1)  # the root's parent has a number that no inode has
        assert root.where is not None
        #: Block and offset of the root directory's inode.
        self.root = root.where

    def _number(self, node: NewInode) -> None:
        for _, child in sorted(node.children.items()):
            if not child.number:
                self._number(child)
        self.count += 1
        node.number = self.count

    def _write(self, node: NewInode, parent: int) -> None:
        if node.where is not None:
            return  # another name of a file
        if node.kind is raw.InodeType.DIRECTORY:
            for _, child in sorted(node.children.items()):
                self._write(child, node.number)
            kind, body = self._directory(node, parent)
        elif node.kind is raw.InodeType.FILE:
            kind, body = _file(node)
        else:
            kind, body = node.kind, _special(node)
        uid, gid = self._id_index(node.uid), self._id_index(node.gid)
        node.where = self.inodes.position
        header = raw.INODE_HEADER.pack(kind, node.mode, uid, gid, node.mtime, node.number)
        self.inodes.write(header + body)

    def _id_index(self, number: int) -> int:
        return self.ids.setdefault(number, len(self.ids))

    def _directory(self, node: NewInode, parent: int) -> tuple[raw.InodeType, bytes]:
        """Write a directory's listing and return its inode's type and body."""
        block, offset = self.directories.position
        size, index = self._write_listing(sorted(node.children.items()))
        links = 2 + sum(child.kind is raw.InodeType.DIRECTORY for child in node.children.values())
        size += 3  # the format counts "." and "..", which are not in the listing
        if not index and size <= _LARGEST_SHORT_LISTING:
            body = raw.DIRECTORY_INODE.pack(block, links, size, offset, parent)
            return raw.InodeType.DIRECTORY, body
        body = raw.LONG_DIRECTORY_INODE.pack(
            links, size, block, parent, len(index), offset, raw.NONE
        )
        return raw.InodeType.LONG_DIRECTORY, body + b"".join(index)

    def _write_listing(self, entries: Sequence[tuple[bytes, NewInode]]) -> tuple[int, list[bytes]]:
        """Write the entries of a directory in runs that share a header.

        Returns:
            The size of the listing in bytes, and the index: an entry for the first run of each
            further metadata block, so that a lookup can skip blocks.
        """
        size = done = 0
        index: list[bytes] = []
        indexed, _ = self.directories.position
        while done < len(entries):
            block, _ = self.directories.position
            if block != indexed:
                name = entries[done][0]
                index.append(raw.DIRECTORY_INDEX.pack(size, block, len(name) - 1) + name)
                indexed = block
            count, run = self._run(entries[done : done + raw.ENTRIES_PER_HEADER])
            self.directories.write(run)
            size += len(run)
            done += count
        return size, index

    def _run(self, entries: Sequence[tuple[bytes, NewInode]]) -> tuple[int, bytes]:
        """Return the entries that one header can describe: their count, and the header with them.

        Their inodes lie in one metadata block, and their inode numbers are near the first one's. A
        run does not begin another entry beyond the end of its metadata block, so that the index can
        point at the beginning of runs.
        """
        first = entries[0][1]
        assert first.where is not None
        start = self.directories.position[1] + raw.DIRECTORY_HEADER.size
        run = bytearray()
        count = 0
        for name, child in entries:
            assert child.where is not None
            difference = child.number - first.number
            if child.where[0] != first.where[0] or difference not in _NUMBER_DIFFERENCES:
                break
            if count and start + len(run) > raw.METADATA_SIZE:
                break
            run += raw.DIRECTORY_ENTRY.pack(child.where[1], difference, child.kind, len(name) - 1)
            run += name
            count += 1
        return count, raw.DIRECTORY_HEADER.pack(count - 1, first.where[0], first.number) + run


def _file(node: NewInode) -> tuple[raw.InodeType, bytes]:
    lengths = struct.pack(f"<{len(node.blocks)}I", *node.blocks)
    if node.links > 1 or node.start > raw.NONE or node.size > raw.NONE:
        end = node.fragment, node.offset
        body = raw.LONG_FILE_INODE.pack(node.start, node.size, 0, node.links, *end, raw.NONE)
        return raw.InodeType.LONG_FILE, body + lengths
    body = raw.FILE_INODE.pack(node.start, node.fragment, node.offset, node.size)
    return raw.InodeType.FILE, body + lengths


def _special(node: NewInode) -> bytes:
    """Return the body of the inode of a symlink, whiteout or FIFO."""
    if node.kind is raw.InodeType.SYMLINK:
        return raw.SYMLINK_INODE.pack(node.links, len(node.target)) + node.target
    if node.kind is raw.InodeType.CHARACTER_DEVICE:
        return raw.DEVICE_INODE.pack(node.links, 0)
    return raw.FIFO_INODE.pack(node.links)
