"""Reads squashfs file systems, of builder and of mksquashfs."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

import zstandard
from isal import isal_zlib

from builder.core.errors import ImageError
from builder.formats.trees.bounds import Tally, shown_path
from builder.formats.trees.member import Kind, Member, hard_link
from builder.formats.trees.squashfs import format as raw

from .inodes import Data, InflatedTable, Listing, read_inode, read_listing

_FRAGMENTS_IN_MEMORY = 64
#: In bytes, uncompressed: the inode table, the directory table and the list of fragments. A file system of 7
#: million files needs that much, and 8 KiB of a table can be compressed to 20 bytes.
MAX_TABLE = 256 << 20
#: In bytes: the memory that inflating one block of at most 1 MiB may need.
_CODEC_MEMORY = 64 << 20
_DAMAGED = "the file is damaged: copy or build it again"
_CODEC_ERRORS: Any = (isal_zlib.error, zstandard.ZstdError)
_DAMAGE = (struct.error, ValueError, LookupError, OverflowError, *_CODEC_ERRORS)


class Squashfs(AbstractContextManager["Squashfs"]):
    """A squashfs in a file. Use it as a context manager.

    Args:
        path: the file.
        offset: where the file system begins, in bytes.
        name: its name in messages; by default the path.
        size: the bytes that it may have; None: up to the end of the file.

    Raises:
        ImageError: it is not a squashfs, is damaged, or has a version or compression that builder
            does not read.
    """

    def __init__(
        self, path: Path, offset: int = 0, name: str = "", size: int | None = None
    ) -> None:
        self._offset = offset
        self._name = name or str(path)
        self._zstd = zstandard.ZstdDecompressor(max_window_size=_CODEC_MEMORY)
        #: Returns a fragment by its number; those that were read last are kept.
        self._fragment = lru_cache(_FRAGMENTS_IN_MEMORY)(self._read_fragment)
        self._file = path.open("rb")
        try:
            self._end = max(0, os.fstat(self._file.fileno()).st_size - offset)
            if size is not None:
                self._end = min(self._end, size)
            self._superblock = self._read_superblock()
            with _DamageNamed(self._name):
                self._read_tables()
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._fragment.cache_clear()

    def members(self, below: str = "") -> Iterator[tuple[Member, Iterator[bytes]]]:
        """Yield all members and their content: each directory before its entries, sorted by name.

        The root directory comes first, with an empty path. Device nodes other than whiteouts are
        skipped.

        The walk begins with the reference of one inode. The inode of a directory leads to its
        listing, and the listing to the references of the entries, which are put on a stack::

            reference  ->  inode table: directory "a"  ->  directory table: b -> reference, c -> reference
                                                                            |
                           inode table: file           <--------------------+
                                |  start, stored lengths, fragment
                                v
                           data blocks, and a range of a fragment

        The invariant: an inode number is one file or directory. So a number that was seen before is
        another name of a file, which becomes a hard link to the first name. A directory cannot have
        two names; a file system in which one does could send the walk in circles, and is refused as
        damaged.

        Args:
            below: only this directory and what is in it; no members when it does not exist or is
                not a directory.

        Raises:
            ImageError: the file system is damaged.
        """
        first_names: dict[int, str] = {}
        folders: set[int] = set()
        tally = Tally(self._name)
        start = self._find_directory(below)
        pending = [] if start is None else [(below, start)]
        while pending:
            path, reference = pending.pop()
            with _DamageNamed(self._name, path):
                number, member, body = read_inode(self._inodes, self._ids, reference, path)
                if not 0 < number <= self._superblock.inode_count:
                    raise ValueError(f"an inode with the number {number}")
                if isinstance(body, Listing):
                    if number in folders:
                        what = f"the directory {shown_path('/' + path)}"
                        raise ImageError(f"{self._name}: {what} appears twice", _DAMAGED)
                    folders.add(number)
                    pending += reversed(list(self._children(path, body, tally)))
            if member is None:
                continue
            if member.kind is not Kind.DIRECTORY and number in first_names:
                yield hard_link(member, path, first_names[number]), iter(())
                continue
            first_names[number] = path
            tally.add_content(member.size)
            yield member, self._content(member, body) if isinstance(body, Data) else iter(())

    def _children(self, path: str, listing: Listing, tally: Tally) -> Iterator[tuple[str, int]]:
        """Yield the paths in a directory, each with the reference of its inode."""
        for name, reference in read_listing(self._directories, listing):
            child = f"{path}/{name}" if path else name
            tally.add_path(child)
            yield child, reference

    def _find_directory(self, path: str) -> int | None:
        """Return the reference of a directory's inode; None when the path is not a directory."""
        reference = self._superblock.root
        with _DamageNamed(self._name, path):
            for part in path.split("/") if path else ():
                body = read_inode(self._inodes, self._ids, reference).body
                if not isinstance(body, Listing):
                    return None
                listed = read_listing(self._directories, body)
                found = next((child for name, child in listed if name == part), None)
                if found is None:
                    return None
                reference = found
            body = read_inode(self._inodes, self._ids, reference).body
        return reference if isinstance(body, Listing) else None

    # superblock and tables ----------------------------------------------------------------------------------

    def _read_superblock(self) -> raw.Superblock:
        head = self._read_at(0, raw.SUPERBLOCK.size) if self._end >= raw.SUPERBLOCK.size else b""
        if head[:4] != raw.MAGIC.to_bytes(4, "little"):
            raise ImageError(f"{self._name} is not a squashfs", _DAMAGED)
        block = raw.Superblock(*raw.SUPERBLOCK.unpack(head))
        if (block.major, block.minor) != (4, 0):
            raise ImageError(
                f"{self._name} is squashfs {block.major}.{block.minor}; builder reads 4.0",
                "create it again with mksquashfs 4.0 or later",
            )
        if block.compressor not in (raw.GZIP, raw.ZSTD):
            name = raw.COMPRESSOR_NAMES.get(block.compressor, block.compressor)
            raise ImageError(
                f"{self._name} is compressed with {name}, which builder does not read",
                "build the SIF again with gzip or zstd: "
                "apptainer build --mksquashfs-args '-comp zstd' NEW.sif OLD.sif",
            )
        if block.block_size not in raw.BLOCK_SIZES:
            problem = f"the squashfs is damaged: blocks of {block.block_size} bytes"
            raise ImageError(f"{self._name}: {problem}", _DAMAGED)
        if block.size > self._end:
            sizes = f"{self._end} bytes of a squashfs of {block.size}"
            raise ImageError(f"{self._name} is cut short: {sizes}", _DAMAGED)
        self._end = block.size
        return block

    def _read_tables(self) -> None:
        block = self._superblock
        self._ids: list[int] = []
        for data in self._read_lookup_table(block.id_table, block.id_count, raw.ID_ENTRY.size):
            self._ids += [number for (number,) in raw.ID_ENTRY.iter_unpack(data)]
        #: The entries of the fragment table.
        self._fragments = b""
        if block.fragment_count:
            count, width = block.fragment_count, raw.FRAGMENT_ENTRY.size
            self._fragments = b"".join(self._read_lookup_table(block.fragment_table, count, width))
        # The metadata blocks of the next table follow those of the directories.
        following = [block.id_table]
        following += [block.fragment_table] if block.fragment_count else []
        following += [block.export_table] if block.export_table != raw.NO_TABLE else []
        starts = (self._read_at(index, raw.INDEX_ENTRY.size) for index in following)
        end = min(raw.INDEX_ENTRY.unpack(start)[0] for start in starts)
        self._inodes = self._read_metadata_table(block.inode_table, block.directory_table)
        self._directories = self._read_metadata_table(block.directory_table, end)

    def _read_at(self, position: int, size: int) -> bytes:
        if position + size > self._end:
            raise ValueError("it is cut short, or refers to something outside of itself")
        return os.pread(self._file.fileno(), size, self._offset + position)

    def _inflate(self, data: bytes, most: int) -> bytes:
        """Inflate a block.

        One byte more than allowed is asked for: then a block that has more is noticed, and one that
        has as many as allowed comes to its end.

        Raises:
            ValueError: it has more bytes than a block may have, or no end.
        """
        if self._superblock.compressor == raw.ZSTD:
            stated = zstandard.get_frame_parameters(data).content_size
            # a size that is stated overrides the limit
            if most < stated < zstandard.CONTENTSIZE_ERROR:
                raise ValueError(f"a block of {stated} bytes, at most {most} are allowed")
            return self._zstd.decompress(data, max_output_size=most)
        decompressor = isal_zlib.decompressobj()
        content = bytes(decompressor.decompress(data, most + 1))
        if len(content) > most or not decompressor.eof:
            raise ValueError(f"a block of more than {most} bytes, or without an end")
        return content

    def _read_block(self, position: int, length: int, uncompressed: int, most: int) -> bytes:
        """Return the content of a block.

        Args:
            position: of what is stored.
            length: its length, with the flag ``uncompressed`` if it is the content itself.
            uncompressed: the flag.
            most: bytes that it may have, stored and as content.
        """
        size = length & ~uncompressed
        if not 0 < size <= most:
            raise ValueError(f"a stored block of {size} bytes, at most {most} are allowed")
        data = self._read_at(position, size)
        return data if length & uncompressed else self._inflate(data, most)

    def _read_metadata_block(self, position: int) -> tuple[bytes, int]:
        """Return the content of a metadata block, and where the next one begins."""
        (head,) = raw.METADATA_LENGTH.unpack(self._read_at(position, raw.METADATA_LENGTH.size))
        start = position + raw.METADATA_LENGTH.size
        data = self._read_block(start, head, raw.UNCOMPRESSED_METADATA, raw.METADATA_SIZE)
        return data, start + (head & ~raw.UNCOMPRESSED_METADATA)

    def _read_lookup_table(self, index: int, count: int, width: int) -> Iterator[bytes]:
        """Yield the blocks of a table of equal entries; the list of their positions is at ``index``."""
        left = count * width
        if left > MAX_TABLE:
            raise ValueError(f"a table of {left} bytes, at most {MAX_TABLE} are allowed")
        blocks = -(-left // raw.METADATA_SIZE)
        positions = self._read_at(index, raw.INDEX_ENTRY.size * blocks)
        for (position,) in raw.INDEX_ENTRY.iter_unpack(positions):
            data = self._read_metadata_block(position)[0][:left]
            left -= len(data)
            yield data
        if left:
            raise ValueError("a table is cut short")

    def _read_metadata_table(self, start: int, end: int) -> InflatedTable:
        table = InflatedTable()
        position = start
        for _ in range(MAX_TABLE // raw.METADATA_SIZE):
            if position >= end:
                return table
            data, following = self._read_metadata_block(position)
            table.add(position - start, data)
            position = following
        raise ValueError(f"a table of more than {MAX_TABLE} bytes")

    # content ------------------------------------------------------------------------------------------------

    def _content(self, member: Member, body: Data) -> Iterator[bytes]:
        block_size = self._superblock.block_size
        with _DamageNamed(self._name, member.path):
            in_fragment = member.size % block_size if body.fragment != raw.NONE else 0
            left, position = member.size - in_fragment, body.start
            blocks = -(-left // block_size)
            lengths = self._inodes.data[body.lengths_at : body.lengths_at + 4 * blocks]
            for (length,) in struct.iter_unpack("<I", lengths):
                wanted = min(left, block_size)
                # no length: a hole
                data = self._read_data(position, length) if length else bytes(wanted)
                if len(data) != wanted:
                    raise ValueError("a block of the wrong size")
                position += length & ~raw.UNCOMPRESSED_BLOCK
                left -= wanted
                yield data
            if left:
                raise ValueError("blocks are missing")
            if in_fragment:
                end = body.offset + in_fragment
                data = self._fragment(body.fragment)[body.offset : end]
                if len(data) != in_fragment:
                    raise ValueError("a fragment that is too short")
                yield data

    def _read_data(self, position: int, length: int) -> bytes:
        most = self._superblock.block_size
        return self._read_block(position, length, raw.UNCOMPRESSED_BLOCK, most)

    def _read_fragment(self, number: int) -> bytes:
        at = number * raw.FRAGMENT_ENTRY.size
        position, length, _ = raw.FRAGMENT_ENTRY.unpack_from(self._fragments, at)
        return self._read_data(position, length)


class _DamageNamed(AbstractContextManager["_DamageNamed"]):
    """Turns the errors that reading a damaged file system can raise into an ImageError.

    A class, because a generator as a context manager costs too much for every inode.
    """

    def __init__(self, name: str, path: str = "") -> None:
        self._name, self._path = name, path

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        if isinstance(value, _DAMAGE):
            where = f" at {shown_path('/' + self._path)}" if self._path else ""
            problem = f"the squashfs is damaged{where}: {value}"
            raise ImageError(f"{self._name}: {problem}", _DAMAGED) from None
