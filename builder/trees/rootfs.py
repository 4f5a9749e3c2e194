"""Writes the merged files of layers and partitions into a folder. Everything in it belongs to this user.

No member can reach outside the folder: a path that has anything but directories above it is refused, and no
link is followed. Device nodes and extended attributes are left out.
"""

# ruff: noqa: PTH101, PTH102, PTH211
# Layers have tens of thousands of files, and os is several times as fast as pathlib.

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ImageError
from builder.model import Image, Layer
from builder.oci.manifest import require_layers
from builder.store.blobs import Store
from builder.store.files import require_space, space_errors
from builder.store.walk import remove_tree
from builder.trees.member import DO_NOT_USE, Advance, Content, Kind, Member, counted
from builder.trees.merge import Merge
from builder.trees.sources import Source, Stream, layer_source

#: How much larger a layer's files are than its blob, where their size is not known.
_UNPACKED_PER_BYTE = 3
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
#: The bits of a mode that remain, as everything belongs to this user: no setuid and setgid.
_FILE_BITS = 0o1777
#: The same of a folder, where setgid gives no rights; a layer made from the tree keeps it.
_FOLDER_BITS = 0o3777
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(
    image: Image,
    folder: Path,
    store: Store,
    *,
    layers: int | None = None,
    advance: Advance = int,
) -> None:
    """Unpacks the layers of an image, see :func:`write_tree`.

    Args:
        image: the image; all its layers are on this machine.
        folder: must not exist, or be empty.
        store: knows which blobs are verified.
        layers: how many layers, from the bottom up; None: all.
        advance: receives the bytes of each file that was unpacked.
    """
    require_layers(image, f"unpack into {folder}")
    wanted = image.layers[:layers]
    sources = [layer_source(layer, store) for layer in wanted]
    write_tree(sources, folder, unpacked_size(wanted), advance)


def unpacked_size(layers: Iterable[Layer]) -> int:
    """About how many bytes the files of some layers have."""
    return sum(layer.unpacked or _UNPACKED_PER_BYTE * layer.descriptor.size for layer in layers)


def write_tree(sources: Sequence[Source], folder: Path, size: int, advance: Advance = int) -> None:
    """Writes what layers or partitions have together into a new folder.

    This user can read, change and remove what is in it; no file is setuid. After an error the folder is gone.

    Args:
        sources: the layers, from the bottom up.
        folder: must not exist, or be empty.
        size: about how many bytes will be written.
        advance: receives the bytes of each file that was written.

    Raises:
        ImageError: a layer is damaged, unsafe or was never downloaded, or the folder is not empty.
        SpaceError: the disk has too little room.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ImageError(f"{folder} is not empty", "unpack into a new folder")
    with space_errors(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            require_space(folder, size, f"unpacking into {folder}")
            writer = _Writer(str(folder))
            for member, content in Merge(sources):
                writer.add(member, counted(content, advance))
            writer.finish()
        except BaseException as e:
            remove_tree(folder)
            if isinstance(e, OSError) and e.errno not in _DISK_FULL:
                name = os.fsdecode(e.filename or "?")
                raise ImageError(f"cannot unpack {name}: {e.strerror}", DO_NOT_USE) from None
            raise


@dataclass(slots=True)
class _Linked(Member):
    """A file of another tree on this machine, which is linked instead of written."""

    place: str = ""
    """Its path on this machine."""


def tree_source(folder: Path) -> Source:
    """The members of a tree that :func:`write_tree` wrote. Writing them makes hard links to its files."""

    def stream() -> Stream:
        yield _found(folder, ""), iter(())
        for where, folders, files in os.walk(folder):
            for name in (*folders, *files):
                path = Path(where, name)
                yield _found(path, str(path.relative_to(folder))), iter(())

    return stream


def _found(place: Path, path: str) -> Member:
    info = place.lstat()
    if stat.S_ISDIR(info.st_mode):
        mode = stat.S_IMODE(info.st_mode)
        return Member(path, Kind.DIRECTORY, mode, mtime=info.st_mtime)
    kind = Kind.SYMLINK if stat.S_ISLNK(info.st_mode) else Kind.FILE
    return _Linked(path, kind, size=info.st_size, place=str(place))


class _Writer:
    """Puts members into a folder that nobody else writes into.

    Args:
        root: the folder, which is empty.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        #: Paths of directories: nothing else has a member below it.
        self._folders = {""}
        #: The members with their modes and times, which are set at the end.
        self._attributes = {"": Member("", Kind.DIRECTORY, 0o755)}
        #: Paths of everything else. Hard links lead to these alone, and are made at the end.
        self._files: set[str] = set()
        self._links: list[Member] = []

    def add(self, member: Member, content: Content) -> None:
        """Puts one member of a merged tree in its place.

        Raises:
            ImageError: the path lies below something that is not a directory, or the content is too short.
            OSError: it cannot be written.
        """
        if member.kind is Kind.HARDLINK:
            self._links.append(member)
            return
        if member.kind is Kind.DIRECTORY:
            self._make_folder(member.path)
            self._attributes[member.path] = member
            return
        self._make_folder(member.path.rpartition("/")[0])
        self._files.add(member.path)
        real = f"{self._root}/{member.path}"
        if isinstance(member, _Linked):
            _link(member.place, real)
        elif member.kind is Kind.SYMLINK:
            os.symlink(member.target, real)
        elif member.kind is Kind.FIFO:
            os.mkfifo(real, 0o600)
            os.chmod(real, member.mode & _FILE_BITS)
        else:
            _write_file(real, member, content)

    def finish(self) -> None:
        """Makes the hard links, and sets modes and times of the directories, the deepest first."""
        for link in self._links:
            if link.target not in self._files:
                what = f"hard link {link.path!r} to {link.target!r}"
                raise ImageError(f"{what}, which does not exist", DO_NOT_USE)
            self._make_folder(link.path.rpartition("/")[0])
            source = f"{self._root}/{link.target}"
            os.link(source, f"{self._root}/{link.path}", follow_symlinks=False)
        for path, member in sorted(self._attributes.items(), reverse=True):
            real = f"{self._root}/{path}"
            os.chmod(real, (member.mode & _FOLDER_BITS) | 0o700)
            if member.mtime:
                os.utime(real, (member.mtime, member.mtime))

    def _make_folder(self, path: str) -> None:
        """Makes a directory and those above it. The members that list them set their modes."""
        if path in self._folders:
            return
        self._make_folder(path.rpartition("/")[0])
        if path in self._files:
            raise ImageError(f"{path[:60]!r} is no directory, but has files in it", DO_NOT_USE)
        os.mkdir(f"{self._root}/{path}", 0o700)
        self._folders.add(path)
        self._attributes[path] = Member(path, Kind.DIRECTORY, 0o755)


def _link(place: str, real: str) -> None:
    """Makes a hard link, or a copy on a file system without hard links."""
    try:
        os.link(place, real, follow_symlinks=False)
    except OSError:
        shutil.copy2(place, real, follow_symlinks=False)


def _write_file(real: str, member: Member, content: Content) -> None:
    with os.fdopen(os.open(real, _NEW_FILE, 0o600), "wb", buffering=0) as file:
        left = member.size
        for data in content:
            left -= len(data)
            while data:
                data = data[file.write(data) :]
        if left:
            raise ImageError(f"the layer ends in the middle of {member.path!r}", DO_NOT_USE)
        os.fchmod(file.fileno(), (member.mode & _FILE_BITS) | 0o400)
        os.utime(file.fileno(), (member.mtime, member.mtime))
