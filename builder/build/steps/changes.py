"""The changes of a step, as the entries of a layer.

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
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Literal

from builder.core.errors import ImageError
from builder.core.model import Layer
from builder.core.store.blobs import Store
from builder.core.store.files import pieces, sha256_of
from builder.formats.layers.entry import Entry, Range
from builder.formats.trees.member import Kind, Member
from builder.formats.trees.sources import layer_source

#: Paths that belong to a container and not to its image, with what is below them.
LEFT_OUT = frozenset(("dev", "proc", "run", "sys", "tmp", "var/tmp", ".dockerenv")) | frozenset(
    ("etc/hosts", "etc/hostname", "etc/mtab", "etc/resolv.conf")
)
_OPAQUE = "user.overlay.opaque"
_WHITEOUT = ".wh."
#: What unpacking as an ordinary user changes in a mode, see :mod:`builder.formats.trees.rootfs`.
_SET_IDS, _READABLE, _USABLE = 0o6000, 0o400, 0o700


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


@dataclass(frozen=True)
class LowerNode:
    """A file or folder of the unpacked image."""

    path: Path
    info: os.stat_result

    @classmethod
    def at(cls, path: Path) -> LowerNode | None:
        """Return the node of a path; None if there is none."""
        try:
            return cls(path, path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    @property
    def target(self) -> str | None:
        """The text of a symlink; None for anything else."""
        return os.readlink(self.path) if stat.S_ISLNK(self.info.st_mode) else None


def nodes_of_upper(upper: Path) -> Nodes:
    """Return the content of the upper folder of an overlay, by path.

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
                    message = f"the step left /{path}, a name that deletes files of other layers"
                    raise ImageError(message, "rename it")
                found[path] = _node(upper / path, modes)
                if found[path].kind == "dir":
                    pending.append(path)
    return found


def _node(path: Path, modes: dict[int, int]) -> LeftNode:
    """Return the node of a path; ``modes``: of files with several names, before their change."""
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
    """Return the content of a layer that a container engine made, by path.

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
            if not path or _is_left_out(path):
                continue
            if member.kind is Kind.FILE:
                content_at = Range(spool, end)
                found[path] = LeftNode("file", member.mode, member.size, "", content_at, path)
                for data in content:
                    end += out.write(data)
            elif member.kind is Kind.HARDLINK and member.target in found:
                found[path] = found[member.target]
            elif member.kind is Kind.OPAQUE:
                found.setdefault(path, LeftNode("dir", 0o755)).opaque = True
            else:
                found[path] = _node_of_member(member, found.get(path))
    return found


def _is_left_out(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in LEFT_OUT)


def _node_of_member(member: Member, before: LeftNode | None) -> LeftNode:
    """Return the node of a member that is no file; ``before``: what the layer had at its path."""
    if member.kind is Kind.SYMLINK:
        return LeftNode("symlink", 0o777, target=member.target)
    if member.kind is Kind.WHITEOUT:
        return LeftNode("whiteout")
    if member.kind is Kind.DIRECTORY:
        return LeftNode("dir", member.mode, opaque=before is not None and before.opaque)
    return LeftNode("other")


@dataclass
class Changes:
    """The difference between the tree that a step left and the tree below.

    Args:
        nodes: the step's tree, as far as it changed or has something changed in it.
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
        """Yield the members in a folder.

        Args:
            folder: its path.
            below: the same folder of the tree below, if it has one.
            opaque: the content of that one is hidden.
        """
        own = self._children.get(folder, ())
        hidden: set[str] = set()
        if opaque and below is not None:
            hidden = {path.name for path in below.iterdir()}.difference(own)
        for name in sorted((*own, *hidden), key=os.fsencode):
            path = f"{folder}/{name}" if folder else name
            if path in LEFT_OUT:
                continue
            if name in hidden:
                yield _whiteout(path)
            else:
                lower = None if below is None else LowerNode.at(below / name)
                yield from self._one(path, self.nodes[path], lower, opaque=opaque)

    def _one(
        self, path: str, node: LeftNode, lower: LowerNode | None, *, opaque: bool
    ) -> Iterator[Entry]:
        if node.kind == "dir":
            yield from self._folder(path, node, lower, opaque=opaque or node.opaque)
        elif node.kind == "symlink":
            if lower is None or lower.target != node.target:
                yield Entry(path, "symlink", 0o777, target=node.target)
        elif node.kind == "file":
            yield from self._file(path, node, lower)
        else:
            if node.kind == "other":
                self.skipped.append(f"/{path}")
            if lower is not None:
                yield _whiteout(path)

    def _folder(
        self, path: str, node: LeftNode, lower: LowerNode | None, *, opaque: bool
    ) -> Iterator[Entry]:
        if lower is not None and not stat.S_ISDIR(lower.info.st_mode):
            lower = None
        members = self._below(path, below=None if lower is None else lower.path, opaque=opaque)
        first = next(members, None)
        if first is None:
            if lower is None and self._is_mount_point(path):
                return
            if lower is not None and _same_mode(node.mode, lower.info, _USABLE):
                return
        yield Entry(path, "dir", node.mode)
        if first is not None:
            yield first
            yield from members

    def _is_mount_point(self, path: str) -> bool:
        """Return whether an empty folder or file may exist only as a mount point."""
        return any(point == path or point.startswith(f"{path}/") for point in self._points)

    def _file(self, path: str, node: LeftNode, lower: LowerNode | None) -> Iterator[Entry]:
        if lower is None and node.size == 0 and self._is_mount_point(path):
            return
        if lower is not None and _same_file(node, lower):
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


def _same_mode(mode: int, info: os.stat_result, added: int) -> bool:
    """Return whether a mode is that of an unpacked file, with ``added`` and without setuid bit."""
    below = stat.S_IMODE(info.st_mode)
    return mode == below or (not mode & _SET_IDS and mode | added == below)


def _same_file(node: LeftNode, lower: LowerNode) -> bool:
    if not stat.S_ISREG(lower.info.st_mode) or node.size != lower.info.st_size:
        return False
    if not _same_mode(node.mode, lower.info, _READABLE):
        return False
    assert node.content is not None
    with node.content.source.open("rb") as a, lower.path.open("rb") as b:
        a.seek(node.content.offset)
        both = zip_longest(pieces(a, node.size), pieces(b))
        return all(one == other for one, other in both)


# two runs of a step ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepDifference:
    """A path that two runs of a step left in different states."""

    step: str
    """The step's name."""
    path: str
    """Absolute path in the image."""
    what: str
    """``content``, ``mode``, ``size``, ``type``, ``target``: all that differ; or the only run."""


def compare_layers(step: str, first: Layer, second: Layer, store: Store) -> list[StepDifference]:
    """Return the differences between two layers of a step, by path."""
    if first.diff_id == second.diff_id:
        return []
    one, two = _members(first, store), _members(second, store)
    found = []
    for path in sorted(one.keys() | two.keys()):
        a, b = one.get(path), two.get(path)
        if a == b:
            continue
        if a is None or b is None:
            what = f"only in the {'second' if a is None else 'first'} run"
        else:
            what = ", ".join(name for name in a if a[name] != b[name])
        found.append(StepDifference(step, f"/{path}", what))
    return found


def _members(layer: Layer, store: Store) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for member, content in layer_source(layer, store)():
        found[member.path] = {
            "type": member.kind.name,
            "mode": member.mode,
            "size": member.size,
            "content": sha256_of(content).hex(),
            "target": member.target,
        }
    return found
