"""Trees of images in memory, and what differs between two of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from builder.core.datafiles import table
from builder.core.errors import ImageError
from builder.core.model import Image, SifImage
from builder.core.store.blobs import Store
from builder.formats.sif import singularity
from builder.formats.sif.read import read_sif
from builder.formats.trees.member import DO_NOT_USE, Content, Kind, Member
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source, layer_source

#: The folder of the files that Apptainer and builder put into a SIF for the runtime. OCI images do not have
#: it.
METADATA = ".singularity.d"
#: Symlinks into :data:`METADATA`.
_METADATA_LINKS = frozenset({"singularity", "environment", ".run", ".exec", ".test", ".shell"})
#: What each SIF has so that the runtime can mount over it: kind and mode.
_MOUNT_POINTS: Mapping[str, tuple[str, int]] = table(singularity.__file__, "common_files.yaml")["empty"]
NodeType = Literal["file", "directory", "symlink", "fifo"]
_NODE_TYPES: Mapping[Kind, NodeType] = {
    Kind.FILE: "file",
    Kind.SYMLINK: "symlink",
    Kind.DIRECTORY: "directory",
    Kind.FIFO: "fifo",
}
_COMPARED = ("type", "size", "sha256", "target")


def is_metadata(path: str, target: str) -> bool:
    """Whether a path belongs to the files for the SIF runtime, and not to the image.

    Args:
        path: the path.
        target: of a symlink, its text; otherwise empty.
    """
    in_folder = path.partition("/")[0] == METADATA
    return in_folder or (path in _METADATA_LINKS and target.startswith(METADATA))


@dataclass(frozen=True, slots=True)
class Node:
    """What a tree has at one path."""

    type: NodeType
    mode: int
    """Permission bits; of a symlink always ``0o777``."""
    uid: int
    gid: int
    size: int = 0
    """Bytes of a file."""
    sha256: str = ""
    """Of a file's content, in hex."""
    target: str = ""
    """The text of a symlink."""


Tree = dict[str, Node]


@dataclass(frozen=True, slots=True)
class Difference:
    """A path that is not equal in two trees."""

    path: str
    kind: Literal["only-a", "only-b", "differs"]
    what: tuple[str, ...] = ()
    """The fields of :class:`Node` that differ; empty where one tree lacks the path."""
    a: Node | None = None
    b: Node | None = None


def read_tree(sources: Sequence[Source]) -> Tree:
    """The tree of layers or partitions.

    Hard links become separate files, and a directory that no layer lists gets mode 0755 and owner root.

    Args:
        sources: from the bottom up.

    Raises:
        ImageError: one of them is damaged.
    """
    tree: Tree = {}
    links: dict[str, str] = {}
    merge = Merge(sources)
    for member, content in merge:
        if member.kind is Kind.HARDLINK:
            links[member.path] = member.target
        else:
            tree[member.path] = _node(member, content)
    for path in links:
        target = _final_target(path, links)
        if target not in tree:
            raise ImageError(f"hard link {path!r} to {target!r}, which does not exist", DO_NOT_USE)
        tree[path] = tree[target]
    for path in merge.implied:
        tree.setdefault(path, Node("directory", 0o755, 0, 0))
    return tree


def _node(member: Member, content: Content) -> Node:
    kind, mode = _NODE_TYPES[member.kind], member.mode & 0o7777
    if member.kind is Kind.SYMLINK:
        return Node(kind, 0o777, member.uid, member.gid, member.size, target=member.target)
    sha256 = ""
    if member.kind is Kind.FILE:
        digest = hashlib.sha256()
        for data in content:
            digest.update(data)
        sha256 = digest.hexdigest()
    return Node(kind, mode, member.uid, member.gid, member.size, sha256)


def _final_target(path: str, links: Mapping[str, str]) -> str:
    """The end of a chain of hard links; if the chain is a loop, one of its paths."""
    target = path
    for _ in range(100):
        if target not in links:
            break
        target = links[target]
    return target


def compare_trees(a: Tree, b: Tree, *, owners: bool = True) -> list[Difference]:
    """What differs between two trees, by path.

    Types, modes, owners, sizes, contents and link targets are compared, times are not.

    The root directory, the files for the SIF runtime (:func:`is_metadata`), and :data:`_MOUNT_POINTS` that
    only one tree has are ignored.

    Args:
        a: one tree.
        b: the other tree.
        owners: compare users and groups.
    """
    fields = (*_COMPARED, *(("uid", "gid") if owners else ()), "mode")
    found = []
    for path in sorted(a.keys() | b.keys()):
        difference = _compare_nodes(path, a.get(path), b.get(path), fields)
        if difference is not None:
            found.append(difference)
    return found


def _compare_nodes(path: str, a: Node | None, b: Node | None, fields: Sequence[str]) -> Difference | None:
    one = a or b
    if one is None or not path or is_metadata(path, one.target):
        return None
    if a is not None and b is not None:
        what = tuple(name for name in fields if getattr(a, name) != getattr(b, name))
        return Difference(path, "differs", what, a, b) if what else None
    is_mount_point = (
        path in _MOUNT_POINTS and _NODE_TYPES[Kind[_MOUNT_POINTS[path][0]]] == one.type and not one.size
    )
    if is_mount_point:
        return None
    return Difference(path, "only-a" if b is None else "only-b", (), a, b)


def image_sources(image: Image | SifImage, store: Store) -> list[Source]:
    """Return the layers or partitions of an image, from the bottom up."""
    if isinstance(image, SifImage):
        return read_sif(image.path).sources()
    return [layer_source(layer, store) for layer in image.layers]


def image_tree(image: Image | SifImage, store: Store) -> Tree:
    """Return all files of an image."""
    return read_tree(image_sources(image, store))
