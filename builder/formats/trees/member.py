"""One entry of a file tree, as tar layers and squashfs partitions hold it."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from builder.core.errors import ImageError

#: The hint of errors about a layer beyond a limit.
DO_NOT_USE = "the layer is damaged or hostile; do not use this image"
#: The hint of errors about a layer that cannot be unpacked.
NOT_UNPACKED = "Docker does not unpack it either; do not use this image"
#: As many symlinks as the Linux kernel follows.
_MAX_LINKS = 40
_OPAQUE_WHITEOUT = ".wh..wh..opq"
_AUFS_PREFIX = ".wh..wh."
_WHITEOUT_PREFIX = ".wh."


class Kind(bytes, Enum):
    """The kind of a member: the type flag of a tar header, or one of two overlay markers."""

    FILE = b"0"
    HARDLINK = b"1"
    SYMLINK = b"2"
    CHARACTER_DEVICE = b"3"
    BLOCK_DEVICE = b"4"
    DIRECTORY = b"5"
    FIFO = b"6"
    WHITEOUT = b"w"
    """Hides its path in the layers below. In a squashfs: a character device 0/0, as in overlayfs."""
    OPAQUE = b"o"
    """Hides everything that the layers below have in the directory at its path."""


#: Kinds that every reader skips: containers get their devices from the runtime.
DEVICES = (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE)


@dataclass(slots=True)
class Member:
    """One entry of a tree, without its content."""

    path: str
    """Relative to the root of the tree, without a leading slash; empty for the root directory.
    Undecodable bytes are surrogates, as :func:`os.fsdecode` returns them. A path read from a tar is
    raw: see :func:`clean_path`."""
    kind: Kind
    mode: int = 0
    """Permission bits, with setuid, setgid and sticky: at most ``0o7777``."""
    uid: int = 0
    gid: int = 0
    size: int = 0
    """Bytes of content; 0 for anything but a file."""
    mtime: float = 0
    """Time of the last change, in seconds since 1970."""
    target: str = ""
    """Of a symlink: its text. Of a hard link: the path of the other name, in the same tree.
    Otherwise empty."""


#: The content of a member, in chunks of any size. It has to be read before the next member.
Content = Iterator[bytes | memoryview]
#: Receives a number of bytes that were read.
Advance = Callable[[int], object]


def hard_link(member: Member, path: str, target: str) -> Member:
    """Return a hard link at ``path`` to ``target``, with the owner, mode and time of a member."""
    return replace(member, path=path, kind=Kind.HARDLINK, size=0, target=target)


def clean_path(path: str) -> str:
    """Return a path from a tar without leading and doubled slashes and without ``.`` and ``..``.

    Raises:
        ImageError: the path leads out of the tree, or has a null byte.
    """
    clean = posixpath.normpath(path).lstrip("/")
    if clean.split("/")[0] == ".." or "\0" in path:
        raise ImageError(f"unsafe path in a layer: {path!r}", NOT_UNPACKED)
    return "" if clean == "." else clean


def ancestors(path: str) -> Iterator[str]:
    """Yield the folders above a path, the lowest one first; not the root."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def walk(
    path: str, link_text: Callable[[str], str | None], *, is_image: bool = False
) -> Iterator[str]:
    """Yield each place on the way to a path, after following symlinks as the kernel does.

    ``done`` is the path walked so far, ``todo`` the parts ahead in reverse order. The text of a
    symlink replaces its name, so a ``..`` in it applies to where the links before it lead:

        y/new with x -> d/e, y -> x/..      done            ahead
                                            y (link)        new
                                            x (link)        .. new
                                            d/e             .. new
                                            d/new

    Args:
        path: relative to the image's root.
        link_text: returns the text of a symlink; None if there is none at a path.
        is_image: the image is complete, so ``..`` of its root is the root.

    Raises:
        IndexError: ``..`` leads out of the image.
        RecursionError: too many symlinks, as in a loop.
    """
    done: list[str] = []
    todo = path.split("/")[::-1]
    followed = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if done or not is_image:
                done.pop()
        else:
            done.append(part)
            text = link_text("/".join(done))
            if text is not None:
                followed += 1
                if followed > _MAX_LINKS:
                    raise RecursionError
                done = [] if text.startswith("/") else done[:-1]
                todo += text.split("/")[::-1]
        yield "/".join(done)


def real_path(path: str, links: Mapping[str, str]) -> str:
    """Return a path in an image with all symlinks followed; empty if there are too many.

    Args:
        path: from the image's root.
        links: the texts of all symlinks, by path.
    """
    try:
        places = list(walk(path, links.get, is_image=True))
    except RecursionError:
        return ""
    return places[-1] if places else ""


def parse_whiteout(path: str) -> tuple[Kind, str] | None:
    """Return the meaning of a file with a ``.wh.`` name in a layer (image-spec, layer.md).

    Args:
        path: a clean path whose last part begins with ``.wh.``.

    Returns:
        ``WHITEOUT`` and the path that it hides, or ``OPAQUE`` and the directory that it empties.
        None for the internal files of aufs (a file system that old Docker versions used), which
        have no meaning in an image.

    Raises:
        ImageError: it names no path to hide.
    """
    folder, _, name = path.rpartition("/")
    if name == _OPAQUE_WHITEOUT:
        return Kind.OPAQUE, folder
    if name.startswith(_AUFS_PREFIX):
        return None
    hidden = name.removeprefix(_WHITEOUT_PREFIX)
    if hidden in ("", ".", ".."):
        raise ImageError(f"unsafe whiteout {path!r}", NOT_UNPACKED)
    return Kind.WHITEOUT, f"{folder}/{hidden}" if folder else hidden


def is_whiteout(path: str) -> bool:
    """Return whether a clean path has the name of a whiteout or an opaque whiteout."""
    return path.rpartition("/")[2].startswith(_WHITEOUT_PREFIX)


def counted(content: Content, advance: Advance) -> Content:
    """Yield the content of a file; ``advance`` receives the size of each piece."""
    for data in content:
        yield data
        advance(len(data))
