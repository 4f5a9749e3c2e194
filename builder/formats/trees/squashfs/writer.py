"""Writes squashfs file systems: the partitions of SIFs.

The same members in the same order produce the same bytes, with any number of threads and on every
machine: threads compress data blocks of 128 KiB, which are written in the order in which they came;
directories are sorted; the versions of libzstd and libdeflate are pinned; and no time but the
members' own is stored.

mksquashfs is not used: its output depends on its version, and version 4.5 sets the time of a tar's
root directory to the time of day.

Extended attributes and device nodes are skipped, as everywhere in builder. A whiteout is written
as a character device 0/0, as overlayfs expects.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import BinaryIO

import deflate
import zstandard

from builder.core.errors import ImageError
from builder.core.model import Compression
from builder.formats.trees.member import Kind, Member
from builder.formats.trees.squashfs import format as raw

from .tables import Block, NewInode, TreeTables, lookup_table, stored

#: Compression levels: nearly as small as slow levels, and fast enough to build with. On 6.4 GB of CUDA
#: libraries, zstd 3 takes 1.2 times as long as 2 for 0.9 % less; 1 takes 0.9 times as long for 1.6 % more.
LEVELS: dict[Compression, int] = {"zstd": 2, "gzip": 6}
#: Part of the cache keys of partitions. Increase it when a change here results in other bytes for
#: the same members.
FORMAT = 1

_PADDING = 4096
_LONGEST_NAME = 256
_LATEST_TIME = 0xFFFFFFFF
_NODE_KINDS = {
    Kind.FILE: raw.InodeType.FILE,
    Kind.SYMLINK: raw.InodeType.SYMLINK,
    Kind.FIFO: raw.InodeType.FIFO,
    Kind.WHITEOUT: raw.InodeType.CHARACTER_DEVICE,
}
_DO_NOT_USE = "do not use this image"


class SquashfsWriter(AbstractContextManager["SquashfsWriter"]):
    """Writes one file system, complete after :meth:`finish`. Use it as a context manager.

    Args:
        out: a file that can seek, open for writing. The file system begins at its current position.
        compression: of data, fragments and tables.
        jobs: threads to compress with. The bytes do not depend on it.
        time: of the file system's creation, and of directories that are not added explicitly, in
            seconds since 1970.
    """

    def __init__(self, out: BinaryIO, compression: Compression, jobs: int, time: int) -> None:
        self._out = out
        self._start = out.tell()
        self._compression = compression
        self._time = time
        self._root = NewInode(raw.InodeType.DIRECTORY, mtime=time)
        #: Hard links that came before their targets, which are looked for at the end.
        self._links: list[tuple[str, str]] = []
        #: The content of the fragment that is being filled.
        self._fragment = bytearray()
        self._fragment_count = 0
        #: Positions and stored lengths of the fragments that are written.
        self._fragments: list[tuple[int, int]] = []
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="squashfs")
        #: Blocks that are being compressed, and the file of each (None for a fragment), in the order of the
        #: output.
        self._pending: deque[tuple[Future[tuple[Block, int]], NewInode | None]] = deque()
        self._local = threading.local()
        self._position = raw.SUPERBLOCK.size
        out.write(bytes(raw.SUPERBLOCK.size))

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, member: Member, content: Iterable[bytes | memoryview] = ()) -> None:
        """Add a member.

        Missing parents are added as directories of root with mode 0755; a member that comes later
        sets their attributes. It also replaces what has its path, unless both are directories, and
        what is no directory where it needs one. A hard link may come before its target.

        Raises:
            ImageError: the member has a kind that squashfs partitions do not hold, or the content
                has another size than the member states.
        """
        if member.kind is Kind.HARDLINK:
            if not self._add_link(member.path, member.target):
                self._links.append((member.path, member.target))
            return
        mtime = min(max(int(member.mtime), 0), _LATEST_TIME)
        if member.kind is Kind.DIRECTORY:
            node = self._directory(member.path)
            node.mode, node.mtime = member.mode & 0o7777, mtime
            node.uid, node.gid = member.uid, member.gid
            return
        kind = _NODE_KINDS.get(member.kind)
        if kind is None:
            name = member.kind.name.lower().replace("_", " ")
            problem = f"{member.path!r} is a {name}, which squashfs partitions do not hold"
            raise ImageError(problem, _DO_NOT_USE)
        node = NewInode(kind, member.mode & 0o7777, member.uid, member.gid, mtime)
        if kind is raw.InodeType.SYMLINK:
            node.target, node.mode = os.fsencode(member.target), 0o777
        elif kind is raw.InodeType.FILE:
            self._add_content(node, member, content)
        self._place(member.path, node)

    def finish(self) -> int:
        """Write the tables.

        Returns:
            The size of the file system in bytes, padded to 4 KiB.

        Raises:
            ImageError: a hard link has no target.
        """
        self._flush_fragment()
        self._write_pending(0)
        for path, target in self._links:
            if not self._add_link(path, target):
                missing = f"hard link {path!r} to {target!r}, which does not exist"
                raise ImageError(missing, _DO_NOT_USE)
        tree = TreeTables(self._root, self._compress)
        inodes, directories = tree.inodes.finish(), tree.directories.finish()
        inode_table = self._position
        directory_table = inode_table + len(inodes)
        fragments_at = directory_table + len(directories)
        fragment_entries = [raw.FRAGMENT_ENTRY.pack(*stored, 0) for stored in self._fragments]
        fragments, fragment_table = lookup_table(fragment_entries, fragments_at, self._compress)
        ids_at, id_entries = fragments_at + len(fragments), map(raw.ID_ENTRY.pack, tree.ids)
        ids, id_table = lookup_table(id_entries, ids_at, self._compress)
        size = ids_at + len(ids)
        padding = -size % _PADDING
        self._out.write(inodes + directories + fragments + ids + bytes(padding))
        self._out.seek(self._start)
        root_block, root_offset = tree.root
        block = raw.Superblock(
            magic=raw.MAGIC,
            inode_count=tree.count,
            time=self._time,
            block_size=raw.BLOCK_SIZE,
            fragment_count=len(self._fragments),
            compressor=raw.COMPRESSOR_IDS[self._compression],
            block_log=raw.BLOCK_SIZE.bit_length() - 1,
            flags=raw.NO_XATTRS,
            id_count=len(tree.ids),
            major=4,
            minor=0,
            root=root_block << 16 | root_offset,
            size=size,
            id_table=id_table,
            xattr_table=raw.NO_TABLE,
            inode_table=inode_table,
            directory_table=directory_table,
            fragment_table=fragment_table if self._fragments else raw.NO_TABLE,
            export_table=raw.NO_TABLE,
        )
        self._out.write(raw.SUPERBLOCK.pack(*block))
        return size + padding

    # the tree -----------------------------------------------------------------------------------------------

    def _directory(self, path: str) -> NewInode:
        node = self._root
        for part in os.fsencode(path).split(b"/") if path else ():
            child = node.children.get(part)
            if child is None or child.kind is not raw.InodeType.DIRECTORY:
                child = NewInode(raw.InodeType.DIRECTORY, mtime=self._time)
                _put(node, part, child)
            node = child
        return node

    def _place(self, path: str, node: NewInode) -> None:
        folder, _, name = path.rpartition("/")
        key = os.fsencode(name)
        if not 0 < len(key) <= _LONGEST_NAME:
            problem = f"{path!r} has an empty name, or one over {_LONGEST_NAME} bytes"
            raise ImageError(problem, _DO_NOT_USE)
        _put(self._directory(folder), key, node)

    def _add_link(self, path: str, target: str) -> bool:
        """Add a name for a file. Returns False if there is no such file."""
        node: NewInode | None = self._root
        for part in os.fsencode(target).split(b"/"):
            node = node.children.get(part) if node else None
        if node is None or node.kind is raw.InodeType.DIRECTORY:
            return False
        node.links += 1
        self._place(path, node)
        return True

    # data ---------------------------------------------------------------------------------------------------

    def _add_content(self, node: NewInode, member: Member, content: Iterable[Block]) -> None:
        """Cut a file into blocks. A file smaller than one block goes into the fragment."""
        node.size = left = member.size
        buffer = bytearray()
        for data in content:
            left -= len(data)
            view = memoryview(data)
            if buffer:
                missing = raw.BLOCK_SIZE - len(buffer)
                buffer += view[:missing]
                view = view[missing:]
            if len(buffer) == raw.BLOCK_SIZE:
                self._submit(buffer, node)
                buffer = bytearray()
            while len(view) >= raw.BLOCK_SIZE:  # the block is not copied
                self._submit(view[: raw.BLOCK_SIZE], node)
                view = view[raw.BLOCK_SIZE :]
            buffer += view
        if left:
            problem = f"the content of {member.path!r} does not have {member.size} bytes"
            raise ImageError(problem, _DO_NOT_USE)
        if not buffer:
            return
        if node.size >= raw.BLOCK_SIZE:
            self._submit(buffer, node)
            return
        if len(self._fragment) + len(buffer) > raw.BLOCK_SIZE:
            self._flush_fragment()
        node.fragment, node.offset = self._fragment_count, len(self._fragment)
        self._fragment += buffer

    def _flush_fragment(self) -> None:
        if self._fragment:
            self._submit(self._fragment, None)
            self._fragment = bytearray()
            self._fragment_count += 1

    def _submit(self, block: Block, node: NewInode | None) -> None:
        """Compress a block in a thread; ``node`` is its file, None for a fragment."""
        future = self._pool.submit(stored, block, self._compress, raw.UNCOMPRESSED_BLOCK)
        self._pending.append((future, node))
        self._write_pending(4 * self._jobs)

    def _compress(self, data: Block) -> bytes:
        if self._compression == "gzip":
            return bytes(deflate.zlib_compress(data, LEVELS["gzip"]))
        if not hasattr(self._local, "zstd"):
            self._local.zstd = zstandard.ZstdCompressor(level=LEVELS["zstd"])
        return bytes(self._local.zstd.compress(data))

    def _write_pending(self, most: int) -> None:
        """Write compressed blocks until at most ``most`` are left to write."""
        while len(self._pending) > most:
            future, node = self._pending.popleft()
            data, length = future.result()
            if node is None:
                self._fragments.append((self._position, length))
            else:
                if not node.blocks:
                    node.start = self._position
                node.blocks.append(length)
            self._out.write(data)
            self._position += len(data)


def _put(folder: NewInode, name: bytes, node: NewInode) -> None:
    """Give a name in a directory to a node; the node that had it has one name less."""
    if name in folder.children:
        folder.children[name].links -= 1
    folder.children[name] = node
