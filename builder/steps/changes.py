"""What a step changed, as the entries of a layer.

    lower (unpacked image)   after the step             layer
    etc/motd  "hello"        etc/motd  touched          (left out: only its time changed)
    etc/old                  -                          etc/.wh.old
    opt/a/x  opt/a/z         opt/a/y (a is a new one)   opt/a/.wh.x  opt/a/y  opt/a/.wh.z
    root/                    root/new                   root/ (its mode)  root/new

Invariant: the layer over the image is the tree that the step left, except for :data:`LEFT_OUT` and
for what no layer of builder has (owners, times, devices, sockets, extended attributes). It depends
on the two trees alone: all runners and file systems return the same layer. So opaque folders, which
overlays write where a folder was removed and made again, become a whiteout for each name in them.
"""

# Path.readlink() would change the text of a symlink:
# ruff: noqa: PTH115

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from builder.errors import ImageError
from builder.layers.entry import Entry, Range
from builder.model import Layer
from builder.store.blobs import Store
from builder.trees.member import Kind
from builder.trees.sources import layer_source

#: Paths that belong to a container and not to its image, with what is below them.
LEFT_OUT = frozenset(
    (
        *("dev", "proc", "run", "sys", "tmp", "var/tmp"),
        *("etc/hosts", "etc/hostname", "etc/mtab", "etc/resolv.conf", ".dockerenv"),
    )
)
_OPAQUE = "user.overlay.opaque"
_WHITEOUT = ".wh."
#: What unpacking as an ordinary user changes in a mode, see :mod:`builder.trees.rootfs`.
_SET_IDS, _READABLE, _USABLE = 0o6000, 0o400, 0o700
_BLOCK = 1 << 20


@dataclass
class LeftNode:
    """What a step left at a path."""

    kind: Literal["dir", "file", "symlink", "whiteout", "other"]
    mode: int = 0
    size: int = 0
    target: str = ""
    """The text of a symlink."""
    content: Range | None = None
    """Of a file."""
    inode: object = None
    """Equal for the names of one file; None: it has one name."""
    opaque: bool = False
    """Nothing of the folder below shows through."""


Nodes = dict[str, LeftNode]


def nodes_of_upper(upper: Path) -> Nodes:
    """Return what is in the upper folder of an overlay, by path.

    Files and folders there become readable for this user; the result has the modes that the step
    left.

    Raises:
        ImageError: A name is that of a whiteout.
    """
    found: Nodes = {}
    pending = [""]
    modes: dict[int, int] = {}
    upper.chmod(0o700)
    while pending:
        folder = pending.pop()
        with os.scandir(upper / folder) as items:
            for item in items:
                path = f"{folder}/{item.name}" if folder else item.name
                if path in LEFT_OUT:
                    continue
                if item.name.startswith(_WHITEOUT):
                    raise ImageError(
                        f"the step left /{path}, a name that deletes files of other layers",
                        "rename it",
                    )
                node = _node(upper / path, modes)
                found[path] = node
                if node.kind == "dir":
                    pending.append(path)
    return found


def _node(path: Path, modes: dict[int, int]) -> LeftNode:
    """Return what is at a path. ``modes``: of files with several names, whose first name may have
    changed it.
    """
    info = path.lstat()
    mode = modes.setdefault(info.st_ino, stat.S_IMODE(info.st_mode))
    needed = {stat.S_IFDIR: _USABLE, stat.S_IFREG: _READABLE}.get(stat.S_IFMT(info.st_mode), 0)
    if mode & needed != needed:
        path.chmod(mode | needed)
    if stat.S_ISDIR(info.st_mode):
        return LeftNode("dir", mode, opaque=_is_opaque(path))
    if stat.S_ISLNK(info.st_mode):
        return LeftNode("symlink", 0o777, target=os.readlink(path))
    if stat.S_ISREG(info.st_mode):
        inode = info.st_ino if info.st_nlink > 1 else None
        return LeftNode("file", mode, info.st_size, content=Range(path), inode=inode)
    is_whiteout = stat.S_ISCHR(info.st_mode) and info.st_rdev == 0
    return LeftNode("whiteout" if is_whiteout else "other")


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def nodes_of_layer(layer: Layer, store: Store, spool: Path) -> Nodes:
    """Return what is in a layer that a container engine made, by path.

    Args:
        layer: its blob is on this machine.
        store: knows which blobs are verified.
        spool: a new file, which receives the content of all files.

    Raises:
        ImageError: The layer is damaged.
    """
    found: Nodes = {}
    end = 0
    with spool.open("wb") as out:
        for member, content in layer_source(layer, store)():
            path = member.path
            if not path or any(path == one or path.startswith(f"{one}/") for one in LEFT_OUT):
                continue
            if member.kind is Kind.FILE:
                found[path] = LeftNode(
                    "file", member.mode, member.size, content=Range(spool, end), inode=path
                )
                for data in content:
                    end += out.write(data)
            elif member.kind is Kind.HARDLINK and member.target in found:
                found[path] = found[member.target]
            elif member.kind is Kind.SYMLINK:
                found[path] = LeftNode("symlink", 0o777, target=member.target)
            elif member.kind is Kind.WHITEOUT:
                found[path] = LeftNode("whiteout")
            elif member.kind is Kind.OPAQUE:
                found.setdefault(path, LeftNode("dir", 0o755)).opaque = True
            elif member.kind is Kind.DIRECTORY:
                opaque = path in found and found[path].opaque
                found[path] = LeftNode("dir", member.mode, opaque=opaque)
            else:
                found[path] = LeftNode("other")
    return found


@dataclass
class Changes:
    """The difference between what a step left and the tree below.

    Args:
        nodes: what the step left, as far as it changed or has something changed in it.
        lower: the tree below.
        targets: absolute paths in the container that the runner created: mount points and HOME.
            They are left out where they are new and empty.
    """

    nodes: Nodes
    lower: Path
    targets: Collection[str] = ()
    skipped: list[str] = field(default_factory=list)
    """Sockets, devices and named pipes, which are left out: absolute paths in the image."""
    _children: dict[str, list[str]] = field(default_factory=dict)
    _seen: dict[object, str] = field(default_factory=dict)
    """The first path of each file with several names."""
    _points: tuple[str, ...] = ()

    def entries(self) -> Iterator[Entry]:
        """Yield the members of the layer, parents first, sorted by the bytes of names."""
        targets = (str(PurePosixPath(target)).strip("/") for target in self.targets)
        self._points = (*targets, *LEFT_OUT)
        for path in self.nodes:
            self._children.setdefault(path.rpartition("/")[0], []).append(path.rpartition("/")[2])
        yield from self._below("", below=self.lower, opaque=False)

    def _below(self, folder: str, *, below: Path | None, opaque: bool) -> Iterator[Entry]:
        """Yield the members in a folder. ``below``: the same folder of the tree below, if it has
        one; ``opaque``: what is in that one is hidden.
        """
        own = self._children.get(folder, ())
        hidden = set(os.listdir(below)).difference(own) if opaque and below is not None else set()  # noqa: PTH208
        for name in sorted((*own, *hidden), key=os.fsencode):
            path = f"{folder}/{name}" if folder else name
            if path in LEFT_OUT:
                continue
            if name in hidden:
                yield _whiteout(path)
                continue
            other = None if below is None else below / name
            yield from self._one(path, self.nodes[path], other, opaque=opaque)

    def _one(
        self, path: str, node: LeftNode, other: Path | None, *, opaque: bool
    ) -> Iterator[Entry]:
        info = None if other is None else _lstat(other)
        if node.kind == "dir":
            is_folder = info is not None and stat.S_ISDIR(info.st_mode)
            below = other if is_folder else None
            yield from self._folder(path, node, info, below, opaque=opaque or node.opaque)
        elif node.kind == "whiteout":
            if info is not None:
                yield _whiteout(path)
        elif node.kind == "symlink":
            is_link = info is not None and stat.S_ISLNK(info.st_mode)
            if not (is_link and other is not None and os.readlink(other) == node.target):
                yield Entry(path, "symlink", 0o777, target=node.target)
        elif node.kind == "file":
            yield from self._file(path, node, info, other)
        else:
            self.skipped.append(f"/{path}")
            if info is not None:
                yield _whiteout(path)

    def _folder(
        self,
        path: str,
        node: LeftNode,
        info: os.stat_result | None,
        below: Path | None,
        *,
        opaque: bool,
    ) -> Iterator[Entry]:
        members = self._below(path, below=below, opaque=opaque)
        first = next(members, None)
        if first is None:
            if below is None and self._is_mount_point(path):
                return
            if below is not None and info is not None and _same_mode(node.mode, info, _USABLE):
                return
        yield Entry(path, "dir", node.mode)
        if first is not None:
            yield first
            yield from members

    def _is_mount_point(self, path: str) -> bool:
        """Return whether an empty folder or file may exist only because something was mounted
        there.
        """
        return any(point == path or point.startswith(f"{path}/") for point in self._points)

    def _file(
        self, path: str, node: LeftNode, info: os.stat_result | None, other: Path | None
    ) -> Iterator[Entry]:
        if info is None and node.size == 0 and self._is_mount_point(path):
            return
        if info is not None and other is not None and _same_file(node, info, other):
            return
        if node.inode is not None:
            first = self._seen.setdefault(node.inode, path)
            if first != path:
                yield Entry(path, "hardlink", node.mode, target=first)
                return
        yield Entry(path, "file", node.mode, node.size, content=node.content)


def _whiteout(path: str) -> Entry:
    folder, slash, name = path.rpartition("/")
    return Entry(f"{folder}{slash}{_WHITEOUT}{name}", "file")


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _same_mode(mode: int, info: os.stat_result, added: int) -> bool:
    """Return whether a mode is that of an unpacked file or folder, which has ``added`` and no
    setuid bit.
    """
    below = stat.S_IMODE(info.st_mode)
    return mode == below or (not mode & _SET_IDS and mode | added == below)


def _same_file(node: LeftNode, info: os.stat_result, other: Path) -> bool:
    if not stat.S_ISREG(info.st_mode) or node.size != info.st_size:
        return False
    if not _same_mode(node.mode, info, _READABLE):
        return False
    assert node.content is not None
    left = node.size
    with node.content.source.open("rb") as a, other.open("rb") as b:
        a.seek(node.content.offset)
        while left:
            size = min(left, _BLOCK)
            if a.read(size) != b.read(size):
                return False
            left -= size
    return True
