"""The members of one layer, read from its blob."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ImageError
from builder.model import Layer
from builder.store.blobs import Store
from builder.trees.inflate import InflatingReader
from builder.trees.member import DO_NOT_USE, Content, Member
from builder.trees.tar import BLOCK, read_members


def read_layer(layer: Layer, store: Store) -> Generator[tuple[Member, Content], None, None]:
    """The unchanged members of a layer's tar: raw paths, whiteouts as files with ``.wh.`` names.

    Content that the caller does not read is skipped.

    Args:
        layer: its blob is on this machine.
        store: knows which blobs are verified.

    Raises:
        ImageError: the layer is damaged, or changed after it was built.
    """
    path = layer.path
    assert path is not None
    if not store.verify(path, layer.descriptor.digest):
        raise ImageError(
            f"{path} does not match the digest of its layer, {layer.descriptor.digest}",
            "the file was changed or is damaged: build again",
        )
    with InflatingReader(path) as reader:
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
