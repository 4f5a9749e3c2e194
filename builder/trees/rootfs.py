"""Layers unpacked into a folder (image-spec, layer.md), as root or as an ordinary user.

Nothing in a layer can reach outside the folder: every parent directory is resolved inside it, symlinks included, as if the folder
were the root; the last part of a name is never followed. Device nodes and extended attributes are left out.
"""

# ruff: noqa: PTH101, PTH102, PTH105, PTH108, PTH112, PTH114, PTH115, PTH120, PTH208, PTH211, S103
# Tens of thousands of files: os is several times as fast as pathlib.

from __future__ import annotations

import gzip
import os
import queue
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import zstandard
from isal import igzip, isal_zlib

from builder.errors import ImageError
from builder.model import Image, Layer
from builder.oci.manifest import require_layers
from builder.store.blobs import Store
from builder.store.files import remove_tree, require_space, space_errors

_CHUNK = 1 << 20
_AHEAD = 16
_BLOCK = 512
_REGULAR = (b"0", b"\0", b"7")
_MAX_LINKS = 40
_DAMAGE: Any = (EOFError, isal_zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
_CURE = "the layer is damaged or hostile; do not use this image"


def unpack(image: Image, folder: Path, store: Store, *, rootless: bool = True) -> None:
    """Applies an image's layers in their order.

    The folder appears under its name when everything is in it, so one that exists is whole.

    Args:
        image: the image; all its layers are on this machine.
        folder: must not exist, or be empty.
        store: remembers which blobs have been checked.
        rootless: everything belongs to this user, who can read, change and remove it all; no setuid. False needs root, and keeps
            owners and modes.

    Raises:
        ImageError: a layer is damaged, unsafe or was never downloaded, or the folder is not empty.
        SpaceError: not enough room.
    """
    require_layers(image, f"unpack into {folder}")
    with new_tree(
        folder, sum(x.unpacked or 3 * x.descriptor.size for x in image.layers), rootless=rootless
    ) as tree:
        for layer in image.layers:
            _apply(layer, tree, store)


@contextmanager
def new_tree(folder: Path, size: int, *, rootless: bool) -> Iterator[Tree]:
    """A tree to be filled; the folder appears under its name when everything is in it.

    Args:
        folder: must not exist, or be empty.
        size: about how many bytes will be written.
        rootless: as for :func:`unpack`.

    Raises:
        ImageError: the folder is not empty.
        SpaceError: not enough room.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ImageError(f"{folder} is not empty", "unpack into a new folder")
    folder = folder.absolute()
    with space_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder.parent, size, f"unpacking into {folder}")
        temporary = folder.parent / f".{folder.name}.{secrets.token_hex(6)}.tmp"
        temporary.mkdir(mode=0o755)
        temporary.chmod(0o755)
        try:
            tree = Tree(str(temporary), rootless)
            yield tree
            tree.finish()
            os.replace(temporary, folder)
        except BaseException:
            remove_tree(temporary)
            raise


def inflate(path: Path) -> Iterator[bytes]:
    """A layer blob's tar, in pieces; gzip (any number of members), zstd (any number of frames) or neither, by magic number.

    Raises:
        ImageError: the blob is damaged.
    """
    try:
        with path.open("rb") as f:
            magic = f.read(4)
            f.seek(0)
            if magic[:2] == b"\x1f\x8b":
                with igzip.GzipFile(fileobj=f) as gz:  # type: ignore[no-untyped-call]
                    while data := gz.read(_CHUNK):
                        yield data
            elif magic == b"\x28\xb5\x2f\xfd":
                with zstandard.ZstdDecompressor().stream_reader(f, read_across_frames=True) as zst:
                    while data := zst.read(_CHUNK):
                        yield data
            else:
                while data := f.read(_CHUNK):
                    yield data
    except _DAMAGE as e:
        raise ImageError(f"{path} is damaged: {e}", "build again, or fetch the image again") from None


class Source(Protocol):
    """Where a member's content comes from."""

    def some(self, limit: int) -> bytes | memoryview:
        """Between 1 and ``limit`` bytes; none at the end."""


class Ahead:
    """Inflates in a thread of its own (the codecs let go of the interpreter) and gives exact numbers of bytes."""

    def __init__(self, path: Path) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
        self._stop = False
        self._data = memoryview(b"")
        self._path = path
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for data in inflate(self._path):
                self._queue.put(data)
                if self._stop:
                    return
            self._queue.put(None)
        except BaseException as e:
            self._queue.put(e)

    def close(self) -> None:
        self._stop = True
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                pass

    def some(self, limit: int) -> memoryview:
        """Between 1 and ``limit`` bytes; none at the end."""
        while not self._data:
            item = self._queue.get()
            if item is None:
                self._queue.put(None)
                return self._data
            if isinstance(item, BaseException):
                raise item
            self._data = memoryview(item)
        out, self._data = self._data[:limit], self._data[limit:]
        return out

    def exactly(self, size: int) -> bytes | memoryview:
        """``size`` bytes, or fewer at the end."""
        first = self.some(size)
        if len(first) == size:
            return first
        parts = bytearray(first)
        while len(parts) < size and (more := self.some(size - len(parts))):
            parts += more
        return bytes(parts)


@dataclass(slots=True)
class Member:
    path: str
    kind: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime: float
    target: str


def _apply(layer: Layer, tree: Tree, store: Store) -> None:
    assert layer.path is not None
    if not store.verify(layer.path, layer.descriptor.digest):
        raise ImageError(
            f"{layer.path} is not the layer {layer.descriptor.digest}",
            "it was changed by hand, or is damaged: build again",
        )
    source = Ahead(layer.path)
    try:
        tree.new_layer()
        for member in members(source, layer.path):
            left = member.size
            for data in tree.add(member, source):
                left -= len(data)
            skip(source, left + -member.size % _BLOCK, layer.path)
    except OSError as e:
        if e.errno in (28, 122):  # no space, quota: space_errors says so
            raise
        raise ImageError(
            f"{layer.path}: cannot unpack {os.fsdecode(e.filename or '?')}: {e.strerror}", _CURE
        ) from None
    finally:
        source.close()


def skip(source: Ahead, size: int, path: Path) -> None:
    while size:
        data = source.some(size)
        if not data:
            raise ImageError(f"{path} ends too early", _CURE)
        size -= len(data)


# tar ------------------------------------------------------------------------------------------------------------------


def members(source: Ahead, path: Path) -> Iterator[Member]:
    """The members of a tar: ustar, pax (global and extended headers) and GNU long names. The caller reads the content."""
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    while True:
        block = bytes(source.exactly(_BLOCK))
        if len(block) < _BLOCK:  # also a zstd frame that was cut: the library takes that for its end
            raise ImageError(f"{path} ends too early", _CURE)
        if not any(block):
            return  # two zero blocks end a tar; one is enough for every reader
        if sum(block[:148]) + 256 + sum(block[156:]) != _number(block[148:156], path):
            raise ImageError(f"{path} is not a tar (checksum of a header)", _CURE)
        kind, size = block[156:157], _number(block[124:136], path)
        if kind in (b"x", b"g", b"L", b"K"):
            if size > 16 << 20:
                raise ImageError(f"{path}: a tar header of {size} bytes", _CURE)
            data = bytes(source.exactly(size))
            skip(source, -size % _BLOCK, path)
            if kind in (b"L", b"K"):
                own["path" if kind == b"L" else "linkpath"] = os.fsdecode(data.rstrip(b"\0"))
            else:
                (shared if kind == b"g" else own).update(_pax(data, path))
            continue
        pax = {**shared, **own} if shared else own
        own = {}
        name = pax.get("path") or _text(block[:100])
        if "path" not in pax and block[257:263] == b"ustar\0" and block[345]:
            name = f"{_text(block[345:500])}/{name}"
        if any(k.startswith("GNU.sparse") for k in pax) or kind == b"S":
            raise ImageError(f"{path}: {name} is a sparse file, which layers may not hold", _CURE)
        try:
            size = int(pax.get("size", size))
            mtime = float(pax.get("mtime", _number(block[136:148], path)))
        except ValueError:
            raise ImageError(f"{path}: {name} has a damaged header", _CURE) from None
        if size < 0:
            raise ImageError(f"{path}: {name} has a damaged header", _CURE)
        yield Member(
            name,
            kind,
            _number(block[100:108], path) & 0o7777,
            int(pax.get("uid", _number(block[108:116], path))),
            int(pax.get("gid", _number(block[116:124], path))),
            size if kind in _REGULAR else 0,
            mtime,
            pax.get("linkpath") or _text(block[157:257]),
        )


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])


def _number(field: bytes, path: Path) -> int:
    if field[0] & 0x80:  # GNU: base 256
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise ImageError(f"{path} is not a tar (number {field!r})", _CURE) from None


def _pax(data: bytes, path: Path) -> dict[str, str]:
    records: dict[str, str] = {}
    while data.strip(b"\0"):
        length, sep, _ = data.partition(b" ")
        if not sep or not length.isdigit() or not len(length) < int(length) <= len(data):
            raise ImageError(f"{path} has a damaged pax header", _CURE)
        key, _, value = data[len(sep) + len(length) : int(length) - 1].partition(b"=")
        records[os.fsdecode(key)] = os.fsdecode(value)
        data = data[int(length) :]
    return records


# the tree -------------------------------------------------------------------------------------------------------------


class Tree:
    """A root file system being made. The folder is nobody else's, so what was resolved stays true until this changes it."""

    def __init__(self, root: str, rootless: bool) -> None:
        self.root = root
        self._rootless = rootless
        self._dirs: dict[str, str] = {"": root}  # image path of a directory -> where it really is
        self._final: dict[str, Member] = {}  # real path of a directory -> its modes and times, set at the end
        self._fresh: set[str] = (
            set()
        )  # real paths that the current layer made: its whiteouts do not touch them

    def new_layer(self) -> None:
        self._fresh.clear()

    def finish(self) -> None:
        """Sets modes and times of the directories, the deepest first."""
        for path, member in sorted(self._final.items(), reverse=True):
            with _vanished():
                if not self._rootless:
                    os.chown(path, member.uid, member.gid, follow_symlinks=False)
                os.chmod(path, (member.mode & 0o1777) | 0o700 if self._rootless else member.mode)
                os.utime(path, (member.mtime, member.mtime))

    def add(self, member: Member, source: Source) -> Iterator[bytes | memoryview]:
        """Puts one member in place; gives the pieces of content that it took from the source."""
        path = clean_path(member.path)
        folder, _, name = path.rpartition("/")
        if name.startswith(".wh."):
            self._whiteout(folder, name, member.path)
            return
        if not path:
            if member.kind == b"5":
                self._final[self.root] = member
            return
        real = f"{self._directory(folder)}/{name}"
        if member.kind == b"5":
            self._make_directory(real, path, member)
        elif member.kind in _REGULAR:
            yield from self._file(real, path, member, source)
        elif member.kind == b"2":
            self._clear(real)
            os.symlink(member.target, real)
            self._own(real, member)
        elif member.kind == b"1":
            self._hard_link(real, member)
        elif member.kind == b"6":
            self._clear(real)
            os.mkfifo(real, member.mode)
        else:
            if member.kind not in (b"3", b"4"):
                raise ImageError(f"tar member {member.path!r} is of unknown type {member.kind!r}", _CURE)
            return
        self._fresh.add(real)

    def _file(self, real: str, path: str, member: Member, source: Source) -> Iterator[bytes | memoryview]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(real, flags, 0o600)
        except FileExistsError:
            self._clear(real)
            fd = os.open(real, flags, 0o600)
        try:
            left = member.size
            while left:
                data = source.some(left)
                if not data:
                    raise ImageError(f"the layer ends in the middle of {member.path!r}", _CURE)
                written = 0
                while written < len(data):
                    written += os.write(fd, data[written:])
                left -= len(data)
                yield data
            if self._rootless:
                os.fchmod(fd, (member.mode & 0o1777) | 0o400)
            else:
                os.fchown(fd, member.uid, member.gid)
                os.fchmod(fd, member.mode)
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)

    def _own(self, real: str, member: Member) -> None:
        if not self._rootless:
            os.chown(real, member.uid, member.gid, follow_symlinks=False)

    def _hard_link(self, real: str, member: Member) -> None:
        target = clean_path(member.target)
        folder, _, name = target.rpartition("/")
        source = f"{self._directory(folder, make=False)}/{name}" if name else ""
        if not source or not os.path.lexists(source) or stat.S_ISDIR(os.lstat(source).st_mode):
            raise ImageError(f"hard link {member.path!r} to {member.target!r}, which is not there", _CURE)
        if source != real:
            self._clear(real)
            os.link(source, real, follow_symlinks=False)

    def _make_directory(self, real: str, path: str, member: Member) -> None:
        try:
            os.mkdir(real, 0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(real).st_mode):
                self._clear(real)
                os.mkdir(real, 0o700)
        self._dirs[path] = real
        self._final[real] = member

    def _clear(self, real: str) -> None:
        """Removes what has this name: file, link or whole directory."""
        try:
            info = os.lstat(real)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(info.st_mode):
            remove_tree(Path(real))
            below = real + "/"
            self._final = {k: v for k, v in self._final.items() if k != real and not k.startswith(below)}
            self._fresh = {k for k in self._fresh if not k.startswith(below)}
            self._dirs = {"": self.root}
        else:
            os.unlink(real)
            if stat.S_ISLNK(info.st_mode):
                self._dirs = {"": self.root}
        self._fresh.discard(real)

    def _whiteout(self, folder: str, name: str, shown: str) -> None:
        where = self._directory(folder, make=False)
        if name == ".wh..wh..opq":
            if where:
                self._hide(where)
            return
        if name.startswith(".wh..wh."):
            return  # aufs's own
        hidden = name.removeprefix(".wh.")
        if hidden in ("", ".", ".."):
            raise ImageError(f"unsafe whiteout {shown!r}", _CURE)
        real = f"{where}/{hidden}"
        if where and real not in self._fresh:
            self._hide(real) if self._has_fresh(real) else self._clear(real)

    def _has_fresh(self, real: str) -> bool:
        below = real + "/"
        return any(k.startswith(below) for k in self._fresh)

    def _hide(self, folder: str) -> None:
        """Removes what lower layers left in a directory; what this layer made stays."""
        if not os.path.isdir(folder) or os.path.islink(folder):
            return
        for child in os.listdir(folder):
            real = f"{folder}/{child}"
            if real in self._fresh and not (os.path.isdir(real) and not os.path.islink(real)):
                continue
            if real in self._fresh or self._has_fresh(real):
                self._hide(real)
            else:
                self._clear(real)

    def _directory(self, path: str, make: bool = True) -> str:
        """Where a directory of the image really is, symlinks followed inside the root; made, or empty, when missing."""
        known = self._dirs.get(path)
        if known is None:
            known = self._resolve(path, make)
            if known:
                self._dirs[path] = known
        return known

    def _resolve(self, path: str, make: bool) -> str:
        pending = path.split("/")[::-1]
        at: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = at[:-1]
                continue
            real = "/".join([self.root, *at, part])
            try:
                info = os.lstat(real)
            except FileNotFoundError:
                if not make:
                    return ""
                os.mkdir(real, 0o755)
                os.chmod(real, 0o755)
                self._fresh.add(real)
                at.append(part)
                continue
            if stat.S_ISLNK(info.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    raise ImageError(f"too many symlinks in {path!r}", _CURE)
                target = os.readlink(real)
                if target.startswith("/"):
                    at = []
                pending += target.split("/")[::-1]
            elif stat.S_ISDIR(info.st_mode):
                at.append(part)
            else:
                if not make:
                    return ""
                self._clear(real)
                os.mkdir(real, 0o755)
                os.chmod(real, 0o755)
                self._fresh.add(real)
                at.append(part)
        return "/".join([self.root, *at])


@contextmanager
def _vanished() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        pass


def clean_path(path: str) -> str:
    parts = [p for p in path.split("/") if p not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise ImageError(f"unsafe path in a layer: {path!r}", _CURE)
    return "/".join(parts)
