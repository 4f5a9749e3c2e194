"""The layout of squashfs 4.0, as Linux defines it in ``fs/squashfs/squashfs_fs.h``.

All numbers are little-endian.

A file system is a superblock and the parts that it points at, here in the order in which builder
writes them::

    superblock
    data blocks         files in blocks, each compressed alone; the last one of a file may be shorter
    fragments           blocks that small files share
    inode table         one inode per file, directory, link... of a length that depends on its type
    directory table     the names in each directory, and where the inodes are
    fragment table      where each fragment is
    id table            the uids and gids; inodes hold an index into it
    padding to 4 KiB

The two tables of inodes and directories, and the entries of the last two, lie in *metadata blocks*:
8 KiB of content, compressed, with its stored length in front. Something in such a table is
addressed by a *reference*: the position of its metadata block, relative to the table, and the
offset in the uncompressed block.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from builder.core.model import Compression

MAGIC = 0x73717368  # "hsqs"
#: Bytes of a data block, and of a fragment, in what builder writes.
BLOCK_SIZE = 128 << 10
#: Block sizes that the format allows.
BLOCK_SIZES = tuple(1 << n for n in range(12, 21))
#: Bytes of content of a metadata block.
METADATA_SIZE = 8192
#: Instead of a fragment's number, or of an index of extended attributes: there is none.
NONE = 0xFFFFFFFF
#: Instead of a table's position: there is no such table.
NO_TABLE = (1 << 64) - 1
#: In the length of a data block or fragment: it is stored uncompressed.
UNCOMPRESSED_BLOCK = 1 << 24
#: In the length of a metadata block: it is stored uncompressed.
UNCOMPRESSED_METADATA = 0x8000
#: Superblock flag: there are no extended attributes.
NO_XATTRS = 0x0200
#: A directory header describes at most this many entries.
ENTRIES_PER_HEADER = 256

GZIP, ZSTD = 1, 6
COMPRESSOR_IDS: Mapping[Compression, int] = {"gzip": GZIP, "zstd": ZSTD}
COMPRESSOR_NAMES = {GZIP: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", ZSTD: "zstd"}


class InodeType(IntEnum):
    """The type of an inode. The long forms hold larger numbers, and a few fields more."""

    DIRECTORY = 1
    FILE = 2
    SYMLINK = 3
    BLOCK_DEVICE = 4
    CHARACTER_DEVICE = 5
    FIFO = 6
    SOCKET = 7
    LONG_DIRECTORY = 8
    LONG_FILE = 9
    LONG_SYMLINK = 10
    LONG_BLOCK_DEVICE = 11
    LONG_CHARACTER_DEVICE = 12
    LONG_FIFO = 13
    LONG_SOCKET = 14

    @property
    def basic(self) -> InodeType:
        """The type without the distinction of long forms."""
        return InodeType(self - 7) if self > InodeType.SOCKET else self


class Superblock(NamedTuple):
    """The first bytes of the file system. Positions are in bytes from its beginning."""

    magic: int
    inode_count: int
    time: int
    """Of the file system's creation, in seconds since 1970."""
    block_size: int
    fragment_count: int
    compressor: int
    block_log: int
    """The logarithm of the block size, base 2."""
    flags: int
    id_count: int
    major: int
    minor: int
    root: int
    """The reference of the root directory's inode: block << 16 | offset."""
    size: int
    """Bytes of the file system, without the padding."""
    id_table: int
    xattr_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int


SUPERBLOCK = struct.Struct("<5I6H8Q")

#: Type, mode, index of the uid, index of the gid, time, inode number: the beginning of every inode.
INODE_HEADER = struct.Struct("<HHHHII")
#: Block of the listing, links, size of the listing + 3, offset of the listing, number of the parent's inode.
DIRECTORY_INODE = struct.Struct("<IIHHI")
#: Links, size of the listing + 3, block of the listing, number of the parent's inode, count of index entries,
#: offset of the listing, extended attributes. The index follows.
LONG_DIRECTORY_INODE = struct.Struct("<IIIIHHI")
#: Position in the listing, block of the directory table, length of the name - 1. The name follows.
DIRECTORY_INDEX = struct.Struct("<III")
#: Position of the first block, fragment, offset in the fragment, size. The stored lengths of the blocks
#: follow.
FILE_INODE = struct.Struct("<IIII")
#: Position of the first block, size, bytes of holes, links, fragment, offset in the fragment, extended
#: attributes. The stored lengths of the blocks follow.
LONG_FILE_INODE = struct.Struct("<QQQIIII")
#: Links, length of the target. The target follows.
SYMLINK_INODE = struct.Struct("<II")
#: Links, device number.
DEVICE_INODE = struct.Struct("<II")
#: Links.
FIFO_INODE = struct.Struct("<I")
#: Count of entries - 1, block of their inodes, inode number that theirs are relative to.
DIRECTORY_HEADER = struct.Struct("<III")
#: Offset of the inode in its block, difference of inode numbers, basic type, length of the name - 1. The name
#: follows.
DIRECTORY_ENTRY = struct.Struct("<HhHH")
#: Position, stored length, unused.
FRAGMENT_ENTRY = struct.Struct("<QII")
ID_ENTRY = struct.Struct("<I")
#: The position of a metadata block, in the index of the fragment and id tables.
INDEX_ENTRY = struct.Struct("<Q")
#: The stored length in front of a metadata block.
METADATA_LENGTH = struct.Struct("<H")
