"""The members of a layer's tar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.errors import ImageError
from builder.tarheaders import BLOCK, Header, TarError, TarSource, read_headers
from builder.trees.member import DO_NOT_USE, Kind, Member

__all__ = ["BLOCK", "read_members"]

_MARKERS = (Kind.WHITEOUT, Kind.OPAQUE)
_KINDS: Mapping[bytes, Kind] = {kind.value: kind for kind in Kind if kind not in _MARKERS}


def read_members(source: TarSource, path: Path) -> Iterator[Member]:
    """The members of a tar, with their paths as the tar has them.

    The caller has to read or skip a member's content, and its padding up to :data:`BLOCK`, before the next
    member.

    Args:
        source: the uncompressed tar.
        path: the layer's blob, for messages.

    Raises:
        ImageError: the tar is damaged, or has a member that layers may not hold.
    """
    try:
        for header in read_headers(source):
            yield _member(header)
    except TarError as e:
        raise ImageError(f"{path}: {e}", DO_NOT_USE) from None


def _member(header: Header) -> Member:
    kind = _KINDS.get(header.flag)
    if kind is None:
        raise TarError(f"{header.path!r} is of unknown type {header.flag!r}")
    return Member(
        header.path,
        kind,
        mode=header.mode,
        uid=header.uid,
        gid=header.gid,
        size=header.size,
        mtime=header.mtime,
        target=header.target,
    )
