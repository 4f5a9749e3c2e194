"""Streams of members: the content of layers, SIF partitions and lists in one form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from builder.core.errors import ImageError
from builder.core.model import Layer
from builder.core.store.blobs import Store
from builder.core.tarheaders import TarEnd, TarError, TarHeader, TarLimit

from .bounds import MAX_CONTENT
from .inflate import InflatingStream, tar_digest
from .member import (
    DEVICES,
    DO_NOT_USE,
    NOT_UNPACKED,
    Content,
    Kind,
    Member,
    ancestors,
    clean_path,
    is_whiteout,
    parse_whiteout,
    walk,
)
from .reader import TarReader
from .squashfs.reader import Squashfs

#: Members with clean paths, each with its content. Whiteouts are members of their own kinds.
Stream = Iterator[tuple[Member, Content]]
#: Opens the stream of a layer or partition. It can be called again, and returns the same members then.
Source = Callable[[], Stream]

_Members = Generator[tuple[Member, Content], None, None]
_MARKERS = (Kind.WHITEOUT, Kind.OPAQUE)
_KINDS: Mapping[bytes, Kind] = {kind.value: kind for kind in Kind if kind not in _MARKERS}


def squashfs_source(
    path: Path, offset: int = 0, name: str = "", below: str = "", size: int | None = None
) -> Source:
    """Yield the members of a squashfs in a file.

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
    """Yield members whose content is in memory."""
    stored = list(entries)

    def stream() -> Stream:
        for member, data in stored:
            yield member, iter((data,) if data else ())

    return stream


def layer_source(layer: Layer, store: Store, *, rehash: bool = False) -> Source:
    """Yield the members of a layer; device nodes are whiteouts.

    Content that the caller does not read is skipped.

    Args:
        layer: its blob is on this machine.
        store: knows which blobs are verified.
        rehash: whether to hash the blob while it is read, unless ``store`` hashed it before,
            instead of trusting that a file that looks unchanged is. A flipped bit is reported at
            the end of the layer: do not use what was read before that.

    The stream raises ImageError when the layer is damaged, hostile, or changed after it was built.
    """

    def stream() -> Stream:
        path, digest = layer.path, layer.descriptor.digest
        assert path is not None
        if rehash and not store.was_hashed(path, digest):
            members = _read_hashed(layer, path, store)
        elif store.verify(path, digest):
            members = _read(layer, path)
        else:
            hint = "the file was changed or is damaged: build again"
            raise ImageError(f"{path} does not match the digest of its layer, {digest}", hint)
        with closing(members):
            yield from members

    return stream


def _read_hashed(layer: Layer, path: Path, store: Store) -> _Members:
    """Yield the members of a layer and hash it; if it is corrupt, raise ImageError at the end."""
    hashed, digest = hashlib.sha256(), layer.descriptor.digest
    try:
        yield from _read(layer, path, hashed)
    except ImageError:
        if not store.rehash(path, digest):  # a flipped bit can look like any other damage
            store.refuse(path, digest)
        raise
    if f"sha256:{hashed.hexdigest()}" != digest:
        store.refuse(path, digest)
    store.remember(path, digest)


def _read(layer: Layer, path: Path, hashed: hashlib._Hash | None = None) -> _Members:
    with closing(InflatingStream(path, hashed)) as stream:
        reader = TarReader(stream, MAX_CONTENT)
        links: dict[str, str] = {}
        devices: set[str] = set()
        try:
            for header in reader.members():
                member = _member(header, links, devices)
                if member is not None:
                    yield member, _content(reader, header, path)
            # a tar without an end, or a zstd frame that was cut: the library takes that for its end
            if not reader.read_some(1) and tar_digest(path) != layer.diff_id:
                raise TarEnd
        except TarError as e:
            hint = DO_NOT_USE if isinstance(e, TarLimit) else NOT_UNPACKED
            raise ImageError(f"{path}: {e}", hint) from None
        if hashed is not None:  # what follows the last member
            reader.finish()


def _member(header: TarHeader, links: dict[str, str], devices: set[str]) -> Member | None:
    """Return a member with clean paths, or None for what a tree does not have.

    Args:
        header: of the member.
        links: the symlinks that the layer has so far; receives those of the member.
        devices: the same of its device nodes, and of their hard links. A device hides what lower layers
            have at its path; overlayfs takes the device 0/0 for a whiteout.
    """
    kind = _KINDS.get(header.flag)
    if kind is None:
        raise TarError(f"{header.path!r} is of unknown type {header.flag!r}")
    path, target, size = _real(header.path, links), header.target, header.size
    links.pop(path, None)
    devices.discard(path)
    if is_whiteout(path):
        marker = parse_whiteout(path)
        if marker is None:
            return None
        (kind, path), size = marker, 0
    elif kind is Kind.HARDLINK:
        target = _real(target, links)
    elif kind is Kind.SYMLINK:
        links[path] = target
    if kind in DEVICES or (kind is Kind.HARDLINK and target in devices):
        devices.add(path)
        kind, target = Kind.WHITEOUT, ""
    return Member(path, kind, header.mode, header.uid, header.gid, size, header.mtime, target)


def _real(path: str, links: Mapping[str, str]) -> str:
    """Return a clean path, where it leads: the folders above it may be symlinks of the layer."""
    path = clean_path(path)
    if not links or not any(folder in links for folder in ancestors(path)):
        return path
    folder, _, name = path.rpartition("/")
    try:
        *_, real = walk(folder, links.get, is_image=True)
    except RecursionError:
        raise TarError(f"{path!r} is below symlinks that lead to each other") from None
    return f"{real}/{name}".lstrip("/")


def _content(reader: TarReader, header: TarHeader, path: Path) -> Content:
    """Yield the content of one member. Raises ImageError if the layer ends in it."""
    try:
        yield from reader.content(header)
    except TarError as e:
        raise ImageError(f"{path}: {e}", NOT_UNPACKED) from None
