"""The members of one layer, read from its blob."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ImageError
from builder.model import Layer
from builder.store.blobs import Store
from builder.store.files import CHUNK
from builder.trees.inflate import InflatingReader
from builder.trees.member import DO_NOT_USE, Content, Member
from builder.trees.tar import BLOCK, read_members


def read_layer(
    layer: Layer, store: Store, *, rehash: bool = False
) -> Generator[tuple[Member, Content], None, None]:
    """The unchanged members of a layer's tar: raw paths, whiteouts as files with ``.wh.`` names.

    Content that the caller does not read is skipped.

    Args:
        layer: its blob is on this machine.
        store: knows which blobs are verified.
        rehash: whether to hash the blob while it is read, unless ``store`` hashed it before, instead of
            trusting that a file that looks unchanged is. A flipped bit is reported at the end of the layer:
            do not use what was read before that.

    Raises:
        ImageError: the layer is damaged, or changed after it was built.
    """
    path, digest = layer.path, layer.descriptor.digest
    assert path is not None
    if rehash and not store.was_hashed(path, digest):
        yield from _read_hashed(path, digest, store)
        return
    if not store.verify(path, digest):
        raise ImageError(
            f"{path} does not match the digest of its layer, {digest}",
            "the file was changed or is damaged: build again",
        )
    with InflatingReader(path) as reader:
        yield from _read(reader, path)


def _read_hashed(path: Path, digest: str, store: Store) -> Generator[tuple[Member, Content], None, None]:
    """The members of a layer, which is hashed at the same time. One that is corrupt is refused at the end."""
    hashed = hashlib.sha256()
    try:
        with InflatingReader(path, hashed) as reader:
            yield from _read(reader, path)
            while reader.read_some(CHUNK):  # what follows the last member
                pass
    except ImageError:
        if not store.rehash(path, digest):  # a flipped bit can look like any other damage
            store.refuse(path, digest)
        raise
    if f"sha256:{hashed.hexdigest()}" != digest:
        store.refuse(path, digest)
    store.remember(path, digest)


def _read(reader: InflatingReader, path: Path) -> Generator[tuple[Member, Content], None, None]:
    for member in read_members(reader, path):
        content = _MemberContent(reader, path, member.path, member.size)
        yield member, content
        reader.skip(content.left + -member.size % BLOCK)


@dataclass(slots=True)
class _MemberContent:
    """Iterates over the content of one member."""

    reader: InflatingReader
    path: Path
    name: str
    left: int
    """Bytes that were not read yet."""

    def __iter__(self) -> _MemberContent:
        return self

    def __next__(self) -> memoryview:
        if not self.left:
            raise StopIteration
        data = self.reader.read_some(self.left)
        if not data:
            raise ImageError(f"{self.path} ends in the middle of {self.name!r}", DO_NOT_USE)
        self.left -= len(data)
        return data
