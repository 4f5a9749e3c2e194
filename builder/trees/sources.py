"""Streams of members: what layers, SIF partitions and lists hold, in one form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from builder.model import Layer
from builder.store.blobs import Store
from builder.trees.layer import read_layer
from builder.trees.member import DEVICES, Content, Kind, Member, clean_path, is_whiteout, parse_whiteout
from builder.trees.squashfs.reader import Squashfs

#: Members with clean paths, each with its content. Whiteouts are members of their own kinds.
Stream = Iterator[tuple[Member, Content]]
#: Opens the stream of a layer or partition. It can be called again, and returns the same members then.
Source = Callable[[], Stream]


def layer_source(layer: Layer, store: Store, *, rehash: bool = False) -> Source:
    """The members of a layer, without device nodes.

    Args:
        layer: its blob is on this machine.
        store: knows which blobs are verified.
        rehash: see :func:`~builder.trees.layer.read_layer`.

    The stream raises ImageError when the layer is damaged, hostile or not on this machine.
    """

    def stream() -> Stream:
        with closing(read_layer(layer, store, rehash=rehash)) as members:
            for raw, content in members:
                member = _cleaned(raw)
                if member is not None:
                    yield member, content

    return stream


def squashfs_source(
    path: Path, offset: int = 0, name: str = "", below: str = "", size: int | None = None
) -> Source:
    """The members of a squashfs in a file.

    Args:
        path: the file.
        offset: where the squashfs begins, in bytes.
        name: its name in messages.
        below: only this directory and what is in it.
        size: the bytes that the squashfs may have; None: up to the end of the file.
    """

    def stream() -> Stream:
        with Squashfs(path, offset, name, size) as squashfs:
            yield from squashfs.members(below)

    return stream


def listed_source(entries: Iterable[tuple[Member, bytes]]) -> Source:
    """Members whose content is in memory."""
    stored = list(entries)

    def stream() -> Stream:
        for member, data in stored:
            yield member, iter((data,) if data else ())

    return stream


def _cleaned(raw: Member) -> Member | None:
    """A member of a tar with clean paths, or None for what a tree does not have."""
    path = clean_path(raw.path)
    if is_whiteout(path):
        marker = parse_whiteout(path)
        return None if marker is None else replace(raw, kind=marker[0], path=marker[1], size=0)
    if raw.kind in DEVICES:
        return None
    if raw.kind is Kind.HARDLINK:
        return replace(raw, path=path, target=clean_path(raw.target))
    return replace(raw, path=path) if path != raw.path else raw
