"""File trees out of layers and SIF partitions: several of them as one (image-spec, layer.md), and two of them compared.

Layers are read from the top down, each once: the first that has a path gives it, and whiteouts hide what comes later. So a tree
is put together as a stream, by any user, and nothing is unpacked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from builder.errors import ImageError
from builder.model import Layer
from builder.store.blobs import Store
from builder.trees.rootfs import Ahead, Member, clean_path, members, skip
from builder.trees.squashfs import DIRECTORY, FIFO, FILE, HARDLINK, SYMLINK, WHITEOUT, Squashfs

Content = Iterator[bytes | memoryview]
Stream = Iterator[tuple[Member, Content]]
#: Gives the members of a layer or partition; may be called again.
Source = Callable[[], Stream]

#: A directory whose entries in lower layers are hidden.
OPAQUE = b"o"
_CURE = "the layer is damaged or hostile; do not use this image"


# sources --------------------------------------------------------------------------------------------------------------


def layer_source(layer: Layer, store: Store) -> Source:
    """The members of a layer's tar, with clean paths; whiteouts as such, device nodes left out.

    Raises (when read):
        ImageError: the layer is damaged, hostile or not on this machine.
    """

    def stream() -> Stream:
        assert layer.path is not None
        if not store.verify(layer.path, layer.descriptor.digest):
            raise ImageError(
                f"{layer.path} is not the layer {layer.descriptor.digest}",
                "it was changed by hand, or is damaged: build again",
            )
        ahead = Ahead(layer.path)
        try:
            for raw in members(ahead, layer.path):
                left = raw.size

                def content(path: str = raw.path) -> Content:
                    nonlocal left
                    while left:
                        data = ahead.some(left)
                        if not data:
                            raise ImageError(f"{layer.path} ends in the middle of {path!r}", _CURE)
                        left -= len(data)
                        yield data

                if (member := _member(raw)) is not None:
                    yield member, content()
                assert layer.path is not None
                skip(ahead, left + -raw.size % 512, layer.path)
        finally:
            ahead.close()

    return stream


def squashfs_source(path: Path, offset: int = 0, name: str = "", below: str = "") -> Source:
    """The members of a squashfs in a file, or of one directory of it."""

    def stream() -> Stream:
        with Squashfs(path, offset, name) as squashfs:
            yield from squashfs.members(below)

    return stream


def listed_source(entries: Iterable[tuple[Member, bytes]]) -> Source:
    """Members held in memory."""
    kept = list(entries)
    return lambda: ((member, iter((data,) if data else ())) for member, data in kept)


def _member(raw: Member) -> Member | None:
    path = clean_path(raw.path)
    folder, _, name = path.rpartition("/")
    if name == ".wh..wh..opq":
        return replace(raw, path=folder, kind=OPAQUE)
    if name.startswith(".wh..wh."):
        return None  # aufs's own
    if name.startswith(".wh."):
        hidden = name.removeprefix(".wh.")
        if hidden in ("", ".", ".."):
            raise ImageError(f"unsafe whiteout {raw.path!r}", _CURE)
        return replace(raw, path=f"{folder}/{hidden}" if folder else hidden, kind=WHITEOUT, size=0)
    if raw.kind in (b"\0", b"7"):
        return replace(raw, path=path, kind=FILE)
    if raw.kind == HARDLINK:
        return replace(raw, path=path, target=clean_path(raw.target))
    if raw.kind in (FILE, SYMLINK, DIRECTORY, FIFO):
        return replace(raw, path=path) if path != raw.path else raw
    if raw.kind in (b"3", b"4"):
        return None
    raise ImageError(f"tar member {raw.path!r} is of unknown type {raw.kind!r}", _CURE)


# several as one -------------------------------------------------------------------------------------------------------


class Merge:
    """What layers hold together. Iterate once; the members come in no particular order, each path at most once.

    A hard link's target is among the members and may come after it. Afterwards ``kinds`` says what there is at each path
    (directories that no layer lists are ``implied``), ``whiteouts`` which paths of trees further down are to be hidden with all
    that is in them, and ``opaque`` of which directories the entries are.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.kinds: dict[str, bytes] = {"": DIRECTORY}
        self.implied: set[str] = {""}
        self.opaque: set[str] = set()
        self._blocked: set[str] = set()  # hidden to the layers further down, with all below
        self._closed: dict[
            str, bool
        ] = {}  # directory -> whether the layers further down may put nothing into it
        self._wanted: dict[str, list[str]] = {}  # hard links whose target is in a layer further down

    def __iter__(self) -> Stream:
        for source in reversed(self._sources):
            yield from self._layer(source)
        if self._wanted:
            target, links = min(self._wanted.items())
            raise ImageError(f"hard link {links[0]!r} to {target!r}, which is not there", _CURE)

    @property
    def whiteouts(self) -> set[str]:
        return {p for p in self._blocked if self.kinds.get(p, DIRECTORY) == DIRECTORY}

    def _layer(self, source: Source) -> Stream:
        here: dict[str, bool] = {}  # what this layer brings, directories aside, and whether it is seen
        blocked: set[str] = set()
        opaque: set[str] = set()
        again: dict[str, list[str]] = {}  # hidden files of this layer that hard links of it keep alive
        aliases: dict[str, str] = {}  # hard links and what they repeat
        for member, content in source():
            path, kind = member.path, member.kind
            if kind in (WHITEOUT, OPAQUE):
                if not self._hidden(path):
                    (blocked if kind == WHITEOUT else opaque).add(path)
                continue
            if kind == DIRECTORY:
                if (path not in self.kinds or path in self.implied) and not self._hidden(path):
                    self._put(path, kind)
                    self.implied.discard(path)
                    yield member, content
                continue
            if path in here:
                raise ImageError(f"{path!r} stands twice in one layer", _CURE)
            seen = path not in self.kinds and not self._hidden(path)
            if not seen and self.kinds.get(path) == DIRECTORY:
                blocked.add(
                    path
                )  # what lies in directories of this name further down was gone before the one above was made
            names = [*([path] if seen else []), *self._wanted.pop(path, [])]
            here[path] = seen
            if seen:
                blocked.add(path)
            if kind != HARDLINK:
                if names:
                    yield from self._named(member, content, names)
                continue
            target = aliases[path] = aliases.get(member.target, member.target)
            for name in names:
                self._put(name, kind)
                if here.get(target):
                    yield replace(member, path=name, target=target), iter(())
                else:
                    (again if target in here else self._wanted).setdefault(target, []).append(name)
        if again:
            for member, content in source():
                if member.path in again and member.kind not in (WHITEOUT, OPAQUE, DIRECTORY):
                    yield from self._named(member, content, again[member.path])
        self._blocked |= blocked
        self.opaque |= opaque
        self._closed.clear()

    def _named(self, member: Member, content: Content, names: Sequence[str]) -> Stream:
        """One file under its first name, and hard links to that."""
        for name in names:
            self._put(name, member.kind)
        yield replace(member, path=names[0]), content
        for name in names[1:]:
            yield replace(member, path=name, kind=HARDLINK, size=0, target=names[0]), iter(())

    def _put(self, path: str, kind: bytes) -> None:
        self._parents(path)
        self.kinds[path] = kind

    def _parents(self, path: str) -> None:
        while path := path.rpartition("/")[0]:
            if path in self.kinds:
                return
            self.kinds[path] = DIRECTORY
            self.implied.add(path)

    def _hidden(self, path: str) -> bool:
        """Whether a layer above hides a path of the current one."""
        return bool(path) and (path in self._blocked or self._is_closed(path.rpartition("/")[0]))

    def _is_closed(self, folder: str) -> bool:
        known = self._closed.get(folder)
        if known is None:
            known = self._closed[folder] = folder in self.opaque or self._hidden(folder)
        return known


# comparing ------------------------------------------------------------------------------------------------------------

#: What Apptainer and builder put into a SIF for the runtime, and an OCI image does not have; and the names of links to it.
METADATA = ".singularity.d"
_METADATA_LINKS = frozenset({"singularity", "environment", ".run", ".exec", ".test", ".shell"})
#: Directories and empty files that a SIF has so that the runtime can mount over them; ignored where one side alone has them.
MOUNT_POINTS: Mapping[str, bytes] = {
    **dict.fromkeys(("dev", "proc", "sys", "tmp", "var", "var/tmp", "root", "home", "etc"), DIRECTORY),
    **dict.fromkeys(("etc/hosts", "etc/resolv.conf"), FILE),
}
_KIND_NAMES = {FILE: "file", SYMLINK: "symlink", DIRECTORY: "directory", FIFO: "fifo"}


def is_metadata(path: str, target: str) -> bool:
    """Whether a path (a symlink to ``target``, if that is not empty) is there for the runtime, and no part of the image."""
    return path.partition("/")[0] == METADATA or (path in _METADATA_LINKS and target.startswith(METADATA))


@dataclass(frozen=True, slots=True)
class Node:
    """What there is at a path. ``size`` in bytes; ``sha256`` (hex) of a file's content, empty for anything else."""

    type: Literal["file", "directory", "symlink", "fifo"]
    mode: int
    uid: int
    gid: int
    size: int = 0
    sha256: str = ""
    target: str = ""


Tree = dict[str, Node]


@dataclass(frozen=True, slots=True)
class Difference:
    """A path that is not the same in two trees: ``kind`` is ``only-a``, ``only-b`` or ``differs``, ``what`` the fields."""

    path: str
    kind: Literal["only-a", "only-b", "differs"]
    what: tuple[str, ...] = ()
    a: Node | None = None
    b: Node | None = None

    def to_json(self) -> dict[str, Any]:
        both = {
            name: [getattr(node, name) if node else None for node in (self.a, self.b)]
            for name in (self.what or ("type", "size"))
        }
        return {"path": "/" + self.path, "kind": self.kind, "what": list(self.what), "values": both}


def read_tree(sources: Sequence[Source]) -> Tree:
    """The tree of layers or partitions, from the bottom up; hard links are files of their own.

    Raises:
        ImageError: one of them is damaged.
    """
    tree: Tree = {}
    links: dict[str, str] = {}
    merge = Merge(sources)
    for member, content in merge:
        if member.kind == HARDLINK:
            links[member.path] = member.target
            continue
        sha256 = ""
        if member.kind == FILE:
            digest = hashlib.sha256()
            for data in content:
                digest.update(data)
            sha256 = digest.hexdigest()
        mode = 0o777 if member.kind == SYMLINK else member.mode & 0o7777
        target = member.target if member.kind == SYMLINK else ""
        kind: Any = _KIND_NAMES[member.kind]
        tree[member.path] = Node(kind, mode, member.uid, member.gid, member.size, sha256, target)
    for path in links:
        target, steps = path, 0
        while target in links and (steps := steps + 1) < 100:
            target = links[target]
        if target not in tree:
            raise ImageError(f"hard link {path!r} to {target!r}, which is not there", _CURE)
        tree[path] = tree[target]
    for path in merge.implied:
        if path not in tree:
            tree[path] = Node("directory", 0o755, 0, 0)
    return tree


def compare_trees(a: Tree, b: Tree, *, owners: bool = True, modes: bool = True) -> list[Difference]:
    """What differs between two trees, by path: types, modes, owners, sizes, contents and link targets; times do not count.

    The root directory, :data:`METADATA` and links to it, and :data:`MOUNT_POINTS` that one side alone has are left out.

    Args:
        owners: compare users and groups.
        modes: compare permissions.
    """
    found = []
    for path in sorted(a.keys() | b.keys()):
        x, y = a.get(path), b.get(path)
        one = x or y
        assert one is not None
        if not path or is_metadata(path, one.target):
            continue
        if x is None or y is None:
            if path in MOUNT_POINTS and _KIND_NAMES[MOUNT_POINTS[path]] == one.type and not one.size:
                continue
            found.append(Difference(path, "only-b" if x is None else "only-a", (), x, y))
            continue
        names = [
            "type",
            "size",
            "sha256",
            "target",
            *(["uid", "gid"] if owners else []),
            *(["mode"] if modes else []),
        ]
        what = tuple(n for n in names if getattr(x, n) != getattr(y, n))
        if what:
            found.append(Difference(path, "differs", what, x, y))
    return found
