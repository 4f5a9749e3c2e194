"""squashfs 4.0 file systems, written and read: the pieces that SIFs are made of. No other program is needed.

The writer takes members in any order and gives the same bytes for the same members on any number of cores and on every machine:
data blocks of 128 KiB are compressed in threads and written in the order in which they came, directories are sorted, libzstd and
libdeflate are pinned, and no time but the members' own goes in. mksquashfs is not used because its output depends on its version,
and because 4.5 gives the root directory of a tar the time of day. The format is that of Linux (``fs/squashfs/squashfs_fs.h``).

Extended attributes and device nodes are left out, as everywhere in builder; a whiteout is a character device 0/0, as overlayfs
has it.
"""

from __future__ import annotations

import bisect
import lzma
import os
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import deflate
import zstandard
from isal import isal_zlib

from builder.config.recipe import Compression
from builder.errors import ImageError
from builder.trees.rootfs import Member

BLOCK = 128 << 10
#: Of the pieces: enough to be near what slow levels give, fast enough not to be waited for.
LEVELS: dict[Compression, int] = {"zstd": 3, "gzip": 6}
#: Raised when the same members give other bytes.
FORMAT = 1
#: A character device 0/0: overlayfs hides what lower layers have at its name.
WHITEOUT = b"w"
FILE, HARDLINK, SYMLINK, DIRECTORY, FIFO = b"0", b"1", b"2", b"5", b"6"

_MAGIC = 0x73717368
_SUPER = struct.Struct("<5I6H8Q")
_COMPRESSORS: dict[Compression, int] = {"gzip": 1, "zstd": 6}
_NAMES = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
_NONE = 0xFFFFFFFF
_NOWHERE = (1 << 64) - 1
_STORED = 1 << 24
_NO_XATTRS = 0x0200
_META = 8192
_DIR, _REG, _LINK, _BLOCK_DEVICE, _CHAR, _PIPE, _SOCKET = range(1, 8)
_CURE = "the file is damaged: copy or build it again"
_DAMAGE: Any = (
    struct.error,
    ValueError,
    LookupError,
    OverflowError,
    isal_zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
)


# writing --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """One inode to be."""

    kind: int
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    children: dict[bytes, _Node] = field(default_factory=dict)
    target: bytes = b""
    size: int = 0
    start: int = 0
    blocks: list[int] = field(default_factory=list)
    fragment: int = _NONE
    offset: int = 0
    links: int = 1
    number: int = 0
    where: tuple[int, int] | None = None  # block and offset in the inode table


class _Metadata:
    """A table in blocks of 8 KiB (uncompressed), each with its length in front."""

    def __init__(self, compress: Callable[[bytes], bytes]) -> None:
        self._compress = compress
        self._pending = bytearray()
        self.data = bytearray()

    @property
    def position(self) -> tuple[int, int]:
        """Where the next byte goes: its block's offset in the table, and its offset in the block."""
        return len(self.data), len(self._pending)

    def write(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= _META:
            self._flush()

    def finish(self) -> bytes:
        if self._pending:
            self._flush()
        return bytes(self.data)

    def _flush(self) -> None:
        block = bytes(self._pending[:_META])
        del self._pending[:_META]
        packed = self._compress(block)
        if len(packed) < len(block):
            self.data += struct.pack("<H", len(packed)) + packed
        else:
            self.data += struct.pack("<H", len(block) | 0x8000) + block


class SquashfsWriter:
    """Writes one file system to a file that can seek. A context manager; nothing is whole before :meth:`finish`.

    Args:
        out: an empty file, open for writing.
        compression: of data, fragments and tables.
        jobs: threads to compress with; the bytes do not depend on it.
        time: of the file system's creation, and of directories that nobody added; seconds since 1970.
    """

    def __init__(self, out: BinaryIO, compression: Compression, jobs: int, time: int) -> None:
        self._out = out
        self._compression = compression
        self._time = time
        self._root = _Node(_DIR, mtime=time)
        self._implied: set[int] = {id(self._root)}
        self._links: list[tuple[str, str]] = []
        self._fragment = bytearray()
        self._fragments: list[tuple[int, int]] = []
        self._fragment_count = 0
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="squash")
        self._pending: deque[tuple[Future[tuple[bytes, bool]], _Node | None]] = deque()
        self._local = threading.local()
        self._position = _SUPER.size
        out.write(bytes(_SUPER.size))

    def __enter__(self) -> SquashfsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, member: Member, content: Iterable[bytes | memoryview] = ()) -> None:
        """Adds a member; parents that are missing are made (0755 root) and take the attributes of a directory that comes later.

        A hard link may come before what it links to.

        Raises:
            ImageError: the path is there already, below something that is not a directory, or of an unknown type.
        """
        path = member.path
        if member.kind == HARDLINK:
            self._links.append((path, member.target))
            return
        mtime = min(max(int(member.mtime), 0), 0xFFFFFFFF)
        if member.kind == DIRECTORY:
            node = self._directory(path)
            if id(node) in self._implied:
                self._implied.discard(id(node))
                node.mode, node.uid, node.gid, node.mtime = (
                    member.mode & 0o7777,
                    member.uid,
                    member.gid,
                    mtime,
                )
            return
        kind = {FILE: _REG, SYMLINK: _LINK, FIFO: _PIPE, WHITEOUT: _CHAR}.get(member.kind)
        if kind is None:
            raise ImageError(
                f"{path!r} is of a type that squashfs pieces do not hold: {member.kind!r}", _CURE
            )
        node = _Node(kind, member.mode & 0o7777, member.uid, member.gid, mtime)
        if kind == _LINK:
            node.target, node.mode = os.fsencode(member.target), 0o777
        elif kind == _REG:
            self._file(node, member, content)
        self._place(path, node)

    def finish(self) -> int:
        """Writes the tables; gives the file system's size in bytes, padded to 4 KiB.

        Raises:
            ImageError: a hard link to something that is not there.
        """
        self._flush_fragment()
        self._drain(0)
        for path, target in self._links:
            node = self._find(target)
            if node is None or node.kind == _DIR:
                raise ImageError(
                    f"hard link {path!r} to {target!r}, which is not there", "do not use this image"
                )
            node.links += 1
            self._place(path, node)
        tables = _Tables(self._root, self._pack)
        inodes, directories, ids = tables.inodes.finish(), tables.directories.finish(), tables.ids
        inode_start = self._position
        directory_start = inode_start + len(inodes)
        fragment_start, at = _NOWHERE, directory_start + len(directories)
        out = [inodes, directories]
        for entries in (
            [struct.pack("<QII", p, n, 0) for p, n in self._fragments],
            [struct.pack("<I", i) for i in ids],
        ):
            packed, index = self._indexed(entries, at)
            out += [packed, index]
            index_at = at + len(packed)
            at = index_at + len(index)
            if entries and len(entries[0]) == 16:
                fragment_start = index_at
        for data in out:
            self._out.write(data)
        self._out.write(bytes(-at % 4096))
        block, offset = tables.root
        self._out.seek(0)
        self._out.write(
            _SUPER.pack(
                _MAGIC,
                tables.count,
                self._time,
                BLOCK,
                len(self._fragments),
                _COMPRESSORS[self._compression],
                BLOCK.bit_length() - 1,
                _NO_XATTRS,
                len(ids),
                4,
                0,
                block << 16 | offset,
                at,
                index_at,
                _NOWHERE,
                inode_start,
                directory_start,
                fragment_start,
                _NOWHERE,
            )
        )
        return at + -at % 4096

    # the tree

    def _directory(self, path: str) -> _Node:
        node = self._root
        for part in os.fsencode(path).split(b"/") if path else ():
            child = node.children.get(part)
            if child is None:
                child = node.children[part] = _Node(_DIR, mtime=self._time)
                self._implied.add(id(child))
            elif child.kind != _DIR:
                raise ImageError(
                    f"{path!r} lies below something that is not a directory", "do not use this image"
                )
            node = child
        return node

    def _place(self, path: str, node: _Node) -> None:
        folder, _, name = path.rpartition("/")
        children = self._directory(folder).children
        raw = os.fsencode(name)
        if raw in children or not 0 < len(raw) <= 256:
            raise ImageError(f"{path!r} stands twice, or has an impossible name", "do not use this image")
        children[raw] = node

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for part in os.fsencode(path).split(b"/"):
            node = node.children.get(part) if node else None
        return node

    # data

    def _file(self, node: _Node, member: Member, content: Iterable[bytes | memoryview]) -> None:
        node.size = left = member.size
        buffer = bytearray()
        for data in content:
            left -= len(data)
            buffer += data
            while len(buffer) >= BLOCK:
                self._submit(bytes(buffer[:BLOCK]), node)
                del buffer[:BLOCK]
        if left:
            raise ImageError(f"{member.path!r} is not of {member.size} bytes, as its header says", _CURE)
        if node.size < BLOCK:
            if len(self._fragment) + len(buffer) > BLOCK:
                self._flush_fragment()
            if buffer:
                node.fragment, node.offset = self._fragment_count, len(self._fragment)
                self._fragment += buffer
        elif buffer:
            self._submit(bytes(buffer), node)

    def _flush_fragment(self) -> None:
        if self._fragment:
            self._submit(bytes(self._fragment), None)
            self._fragment.clear()
            self._fragment_count += 1

    def _submit(self, block: bytes, node: _Node | None) -> None:
        self._pending.append((self._pool.submit(self._squeeze, block), node))
        self._drain(4 * self._jobs)

    def _squeeze(self, block: bytes) -> tuple[bytes, bool]:
        packed = self._pack(block)
        return (packed, True) if len(packed) < len(block) else (block, False)

    def _pack(self, data: bytes) -> bytes:
        if self._compression == "gzip":
            return bytes(deflate.zlib_compress(data, LEVELS["gzip"]))
        if not hasattr(self._local, "zstd"):
            self._local.zstd = zstandard.ZstdCompressor(level=LEVELS["zstd"])
        packed: bytes = self._local.zstd.compress(data)
        return packed

    def _drain(self, most: int) -> None:
        while len(self._pending) > most:
            future, node = self._pending.popleft()
            data, packed = future.result()
            length = len(data) if packed else len(data) | _STORED
            if node is None:
                self._fragments.append((self._position, length))
            else:
                if not node.blocks:
                    node.start = self._position
                node.blocks.append(length)
            self._out.write(data)
            self._position += len(data)

    def _indexed(self, entries: list[bytes], at: int) -> tuple[bytes, bytes]:
        """A table of fixed entries that will lie at ``at``: its blocks, and the positions of the blocks."""
        data = b"".join(entries)
        table, index = bytearray(), bytearray()
        for start in range(0, len(data), _META):
            one = _Metadata(self._pack)
            one.write(data[start : start + _META])
            index += struct.pack("<Q", at + len(table))
            table += one.finish()
        return bytes(table), bytes(index)


class _Tables:
    """The inode and directory tables of a tree. Children are written before the directory that holds them."""

    def __init__(self, root: _Node, compress: Callable[[bytes], bytes]) -> None:
        self.inodes, self.directories = _Metadata(compress), _Metadata(compress)
        self.ids: list[int] = []
        self._ids: dict[int, int] = {}
        self.count = 0
        self._number(root)
        self._write(root, self.count + 1)
        assert root.where is not None
        self.root = root.where

    def _number(self, node: _Node) -> None:
        for _, child in sorted(node.children.items()):
            if not child.number:
                self._number(child)
        self.count += 1
        node.number = self.count

    def _write(self, node: _Node, parent: int) -> None:
        if node.where is not None:
            return  # another name of a file
        if node.kind == _DIR:
            for _, child in sorted(node.children.items()):
                self._write(child, node.number)
            body = self._listing(node, parent)
        elif node.kind == _REG:
            sizes = struct.pack(f"<{len(node.blocks)}I", *node.blocks)
            if node.links > 1 or node.start > _NONE or node.size > _NONE:
                values = (node.start, node.size, 0, node.links, node.fragment, node.offset, _NONE)
                body = (9, struct.pack("<QQQIIII", *values) + sizes)
            else:
                body = (2, struct.pack("<IIII", node.start, node.fragment, node.offset, node.size) + sizes)
        elif node.kind == _LINK:
            body = (3, struct.pack("<II", node.links, len(node.target)) + node.target)
        elif node.kind == _CHAR:
            body = (5, struct.pack("<II", node.links, 0))
        else:
            body = (6, struct.pack("<I", node.links))
        kind, rest = body
        node.where = self.inodes.position
        head = struct.pack(
            "<HHHHII", kind, node.mode, self._id(node.uid), self._id(node.gid), node.mtime, node.number
        )
        self.inodes.write(head + rest)

    def _id(self, number: int) -> int:
        if number not in self._ids:
            self._ids[number] = len(self.ids)
            self.ids.append(number)
        return self._ids[number]

    def _listing(self, node: _Node, parent: int) -> tuple[int, bytes]:
        """Writes a directory's entries, and gives its inode's type and body."""
        block, offset = self.directories.position
        size = 0
        index: list[tuple[int, int, bytes]] = []
        indexed = block
        entries = sorted(node.children.items())
        at = 0
        while at < len(entries):
            here, _ = self.directories.position
            if here != indexed:
                index.append((size, here, entries[at][0]))
                indexed = here
            first = entries[at][1]
            assert first.where is not None
            run = bytearray()
            count = 0
            # A header serves 256 entries with inodes of one block; none goes past a block of the table, so that lookups can jump.
            for name, child in entries[at : at + 256]:
                assert child.where is not None
                if child.where[0] != first.where[0] or not -32768 <= child.number - first.number <= 32767:
                    break
                if count and self.directories.position[1] + 12 + len(run) > _META:
                    break
                run += (
                    struct.pack(
                        "<HhHH", child.where[1], child.number - first.number, child.kind, len(name) - 1
                    )
                    + name
                )
                count += 1
            run[:0] = struct.pack("<III", count - 1, first.where[0], first.number)
            self.directories.write(bytes(run))
            size += len(run)
            at += count
        links = 2 + sum(child.kind == _DIR for child in node.children.values())
        if index or size + 3 > 0xFFFF:
            body = struct.pack("<IIIIHHI", links, size + 3, block, parent, len(index), offset, _NONE)
            body += b"".join(struct.pack("<III", p, b, len(n) - 1) + n for p, b, n in index)
            return 8, body
        return 1, struct.pack("<IIHHI", block, links, size + 3, offset, parent)


# reading --------------------------------------------------------------------------------------------------------------


class Squashfs:
    """A squashfs in a file, read front to back.

    Args:
        path: the file.
        offset: where the file system begins, in bytes.
        name: what messages call it.

    Raises:
        ImageError: not a squashfs, damaged, or of a compression that builder does not read.
    """

    def __init__(self, path: Path, offset: int = 0, name: str = "") -> None:
        self._path = path
        self._offset = offset
        self._name = name or str(path)
        self._file = path.open("rb")
        try:
            head = self._at(0, _SUPER.size)
            if len(head) < _SUPER.size or head[:4] != b"hsqs":
                raise ImageError(f"{self._name} is not a squashfs", _CURE)
            values = _SUPER.unpack(head)
            if values[9:11] != (4, 0):
                raise ImageError(
                    f"{self._name} is squashfs {values[9]}.{values[10]}; builder reads 4.0", "squash it again"
                )
            if values[5] not in (1, 4, 6):
                raise ImageError(
                    f"{self._name} is compressed with {_NAMES.get(values[5], values[5])}, which builder does not read",
                    "build the SIF again with gzip, xz or zstd: apptainer build --mksquashfs-args '-comp zstd' NEW.sif OLD.sif",
                )
            if values[3] not in (1 << n for n in range(12, 21)):
                raise ImageError(f"{self._name}: the squashfs is damaged: blocks of {values[3]} bytes", _CURE)
            self.inode_count, self.time, self._block_size, self._fragment_count, self._compressor = values[
                1:6
            ]
            self._id_count, self._root, self.size = values[8], values[11], values[12]
            self._id_start, _, inode_start, directory_start, fragment_start, _ = values[13:19]
            self._zstd = zstandard.ZstdDecompressor()
            with self._damage():
                self._ids = [
                    i
                    for block in self._indexed(self._id_start, self._id_count, 4)
                    for (i,) in struct.iter_unpack("<I", block)
                ]
                fragments = (
                    self._indexed(fragment_start, self._fragment_count, 16)
                    if self._fragment_count
                    else iter(())
                )
                self._fragments = [
                    (p, n) for block in fragments for p, n, _ in struct.iter_unpack("<QII", block)
                ]
                end = fragment_start if self._fragment_count else self._id_start
                first = struct.unpack("<Q", self._at(end, 8))[0]
                self._inodes = self._table(inode_start, directory_start)
                self._directories = self._table(directory_start, first)
        except BaseException:
            self._file.close()
            raise
        self._cache: OrderedDict[int, bytes] = OrderedDict()

    def __enter__(self) -> Squashfs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def compression(self) -> str:
        return _NAMES[self._compressor]

    def members(self, below: str = "") -> Iterator[tuple[Member, Iterator[bytes]]]:
        """All members and their content, directories before what is in them, each sorted; later names of a file are hard links.

        The root directory comes first, with an empty path. Device nodes other than whiteouts are left out.

        Args:
            below: a directory: only it and what is in it (nothing, when it is not there or no directory).

        Raises:
            ImageError: the file system is damaged.
        """
        seen: dict[int, str] = {}
        pending: list[tuple[str, int]] = [(below, r) for r in (self._find(below),) if r is not None]
        folders: set[int] = set()
        while pending:
            path, reference = pending.pop()
            with self._damage(path):
                member, number, more = self._inode(path, reference)
                if member is None:
                    continue
                if member.kind == DIRECTORY:
                    if number in folders:
                        raise ImageError(f"{self._name}: the directory /{path} stands twice", _CURE)
                    folders.add(number)
                    children = [(f"{path}/{n}" if path else n, r) for n, r in self._entries(*more)]
                    pending += reversed(children)
            if member.kind != DIRECTORY and number in seen:
                yield (
                    Member(
                        path, HARDLINK, member.mode, member.uid, member.gid, 0, member.mtime, seen[number]
                    ),
                    iter(()),
                )
                continue
            seen[number] = path
            yield member, self._content(path, member.size, *more) if member.kind == FILE else iter(())

    def _find(self, path: str) -> int | None:
        """A directory's inode."""
        at = self._root
        with self._damage(path):
            for part in path.split("/") if path else ():
                member, _, more = self._inode("", at)
                if member is None or member.kind != DIRECTORY:
                    return None
                found = dict(self._entries(*more)).get(part)
                if found is None:
                    return None
                at = found
            member = self._inode("", at)[0]
        return at if member is not None and member.kind == DIRECTORY else None

    # tables

    def _at(self, position: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, self._offset + position)

    def _damage(self, path: str = "") -> _Damage:
        return _Damage(self._name, path)

    def _inflate(self, data: bytes, most: int) -> bytes:
        if self._compressor == 1:
            return bytes(isal_zlib.decompressobj().decompress(data, most))
        if self._compressor == 6:
            return self._zstd.decompress(data, max_output_size=most)
        return lzma.LZMADecompressor().decompress(data, most)

    def _metadata(self, position: int) -> tuple[bytes, int]:
        """A metadata block, and where the next one begins."""
        (head,) = struct.unpack("<H", self._at(position, 2))
        size = head & 0x7FFF
        data = self._at(position + 2, size)
        if len(data) != size or not size:
            raise ValueError("cut short")
        return (data if head & 0x8000 else self._inflate(data, _META)), position + 2 + size

    def _indexed(self, start: int, count: int, width: int) -> Iterator[bytes]:
        blocks = -(-count * width // _META)
        left = count * width
        for (position,) in struct.iter_unpack("<Q", self._at(start, 8 * blocks)):
            data = self._metadata(position)[0][:left]
            left -= len(data)
            yield data
        if left:
            raise ValueError("cut short")

    def _table(self, start: int, end: int) -> _Blocks:
        table = _Blocks()
        at = start
        while at < end:
            data, following = self._metadata(at)
            table.add(at - start, data)
            at = following
        return table

    def _inode(self, path: str, reference: int) -> tuple[Member | None, int, tuple[int, ...]]:
        """A member, its inode's number, and where its content or its entries are."""
        at = self._inodes.place(reference >> 16, reference & 0xFFFF)
        data = self._inodes.data
        kind, mode, uid, gid, mtime, number = struct.unpack_from("<HHHHII", data, at)
        owner = self._ids[uid], self._ids[gid]
        at += 16
        if kind in (1, 8):
            if kind == 1:
                block, _, size, offset, _ = struct.unpack_from("<IIHHI", data, at)
            else:
                _, size, block, _, _, offset, _ = struct.unpack_from("<IIIIHHI", data, at)
            return Member(path, DIRECTORY, mode, *owner, 0, mtime, ""), number, (block, offset, size - 3)
        if kind in (2, 9):
            if kind == 2:
                start, fragment, offset, size = struct.unpack_from("<IIII", data, at)
                at += 16
            else:
                start, size, _, _, fragment, offset, _ = struct.unpack_from("<QQQIIII", data, at)
                at += 40
            return Member(path, FILE, mode, *owner, size, mtime, ""), number, (start, fragment, offset, at)
        if kind in (3, 10):
            (length,) = struct.unpack_from("<I", data, at + 4)
            target = os.fsdecode(bytes(data[at + 8 : at + 8 + length]))
            return Member(path, SYMLINK, 0o777, *owner, 0, mtime, target), number, ()
        if kind in (5, 12) and struct.unpack_from("<I", data, at + 4)[0] == 0:
            return Member(path, WHITEOUT, mode, *owner, 0, mtime, ""), number, ()
        if kind in (6, 13):
            return Member(path, FIFO, mode, *owner, 0, mtime, ""), number, ()
        if kind in (4, 5, 7, 11, 12, 14):
            return None, number, ()
        raise ValueError(f"inode of type {kind}")

    def _entries(self, block: int, offset: int, size: int) -> Iterator[tuple[str, int]]:
        if size <= 0:
            return
        at = self._directories.place(block, offset)
        data = self._directories.data
        end = at + size
        while at < end:
            count, start, _ = struct.unpack_from("<III", data, at)
            at += 12
            if count > 255:
                raise ValueError("too many entries")
            for _ in range(count + 1):
                where, _, _, length = struct.unpack_from("<HhHH", data, at)
                raw = bytes(data[at + 8 : at + 9 + length])
                at += 9 + length
                if raw in (b".", b"..") or b"/" in raw or b"\0" in raw or len(raw) != length + 1:
                    raise ValueError(f"a file named {raw!r}")
                yield os.fsdecode(raw), start << 16 | where

    # content

    def _content(
        self, path: str, size: int, start: int, fragment: int, offset: int, sizes: int
    ) -> Iterator[bytes]:
        with self._damage(path):
            tail = size % self._block_size if fragment != _NONE else 0
            left, at = size - tail, start
            for (length,) in struct.iter_unpack(
                "<I", self._inodes.data[sizes : sizes + 4 * -(-left // self._block_size)]
            ):
                want = min(left, self._block_size)
                data = self._block(at, length) if length else bytes(want)
                if len(data) != want:
                    raise ValueError("a block of the wrong size")
                at += length & ~_STORED
                left -= want
                yield data
            if left:
                raise ValueError("blocks are missing")
            if tail:
                data = self._tail(fragment)[offset : offset + tail]
                if len(data) != tail:
                    raise ValueError("a fragment that is too short")
                yield data

    def _block(self, position: int, length: int) -> bytes:
        size = length & ~_STORED
        data = self._at(position, size)
        if len(data) != size or size > self._block_size:
            raise ValueError("cut short")
        return data if length & _STORED else self._inflate(data, self._block_size)

    def _tail(self, fragment: int) -> bytes:
        if (data := self._cache.get(fragment)) is None:
            data = self._cache[fragment] = self._block(*self._fragments[fragment])
            if len(self._cache) > 64:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(fragment)
        return data


class _Blocks:
    """A metadata table in memory, found by the position of its blocks."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._positions: list[int] = []
        self._starts: list[int] = []

    def add(self, position: int, data: bytes) -> None:
        self._positions.append(position)
        self._starts.append(len(self.data))
        self.data += data

    def place(self, block: int, offset: int) -> int:
        i = bisect.bisect_left(self._positions, block)
        if i == len(self._positions) or self._positions[i] != block:
            raise ValueError("a reference to nothing")
        return self._starts[i] + offset


class _Damage:
    """Turns what reading a damaged file system can raise into an ImageError."""

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(value, _DAMAGE):
            where = f" at /{self._path}" if self._path else ""
            raise ImageError(f"{self._name}: the squashfs is damaged{where}: {value}", _CURE) from None
