"""Writes the merged files of layers and partitions into a folder; all of it belongs to this user.

No member can reach outside the folder: a path that has anything but directories above it is
refused, and no link is followed. Device nodes and extended attributes are skipped.

A layer can be unpacked alone, for all images that have it. Its folder holds the content of its
files, under numbers, and a list of its members. So whiteouts, hard links to other layers and modes
of folders stay what they are, and no path of the layer is a path on this machine. A tree has hard
links to these files::

    layer: members     0 opt/ (folder)   1 opt/a (file)   2 opt/.wh.b (whiteout)
    layer: 1           the content of opt/a
    tree:  opt/a       a hard link to it
"""

# ruff: noqa: PTH101, PTH102, PTH108, PTH211
# Layers have tens of thousands of files, and os is several times as fast as pathlib.

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import ImageError
from builder.core.model import Layer
from builder.core.store.blobs import Store
from builder.core.store.files import DISK_FULL, space_errors
from builder.core.store.walk import remove_tree

from .bounds import Tally
from .member import NOT_UNPACKED, Advance, Content, Kind, Member, counted
from .merge import Merge
from .sources import Source, Stream, layer_source

#: How much larger a layer's files are than its blob, where their size is not known.
_UNPACKED_PER_BYTE = 3
#: The list in the folder of an unpacked layer: a JSON array on each line. Line N describes the file N.
_MEMBERS = "members"
#: The bits of a mode that remain, as everything belongs to this user: no setuid and setgid.
_FILE_BITS = 0o1777
#: The same of a folder, where setgid gives no rights; a layer made from the tree keeps it.
_FOLDER_BITS = 0o3777
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Unpacked(Member):
    """A member of a layer that was unpacked."""

    content_path: str = ""
    """The file on this machine that holds its content."""


def unpack_layer(layer: Layer, folder: Path, store: Store, advance: Advance = int) -> None:
    """Unpack one layer into a new folder, for :func:`unpacked_source`; after an error it is gone.

    Args:
        layer: its blob is on this machine.
        folder: must not exist.
        store: knows which blobs are verified.
        advance: receives the bytes of each file that was unpacked.

    Raises:
        ImageError: the layer is damaged or unsafe.
        SpaceError: the disk is full.
    """
    tally = Tally(str(layer.path))
    with _new_folder(folder), (folder / _MEMBERS).open("w") as members:
        for number, (member, content) in enumerate(layer_source(layer, store)()):
            tally.add(member)
            if member.kind is Kind.FILE:
                _write_file(f"{folder}/{number}", member, counted(content, advance))
            kind = member.kind.decode()
            fields = member.path, kind, member.mode, member.size, member.mtime, member.target
            members.write(f"{json.dumps(fields)}\n")


def unpacked_source(folder: Path) -> Source:
    """Return the members of an unpacked layer. Its files become hard links in a tree."""

    def stream() -> Stream:
        with (folder / _MEMBERS).open() as members:
            for number, line in enumerate(members):
                path, kind, mode, size, mtime, target = json.loads(line)
                attributes = (mode, 0, 0, size, mtime, target, f"{folder}/{number}")
                yield _Unpacked(path, Kind(kind.encode()), *attributes), iter(())

    return stream


def unpacked_size(layers: Iterable[Layer]) -> int:
    """Estimate the bytes of the files of some layers."""
    return sum(layer.unpacked or _UNPACKED_PER_BYTE * layer.descriptor.size for layer in layers)


def write_tree(sources: Sequence[Source], folder: Path, advance: Advance = int) -> None:
    """Write the merged tree of layers or partitions into a new folder.

    This user can read, change and remove what is in it; no file is setuid. After an error the
    folder is gone.

    Args:
        sources: the layers, from the bottom up.
        folder: must not exist.
        advance: receives the bytes of each file that was written.

    Raises:
        ImageError: a layer is damaged, unsafe or was never downloaded.
        SpaceError: the disk is full.
    """
    with _new_folder(folder):
        writer = _Writer(str(folder))
        for member, content in Merge(sources):
            writer.add(member, counted(content, advance))
        writer.finish()


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make a folder, which is removed if the body of the ``with`` statement fails to fill it."""
    with space_errors(folder.parent):
        folder.mkdir(0o700, parents=True)
        try:
            yield
        except BaseException as e:
            remove_tree(folder)
            if isinstance(e, OSError) and e.errno not in DISK_FULL:
                name = os.fsdecode(e.filename or "?")
                raise ImageError(f"cannot unpack {name}: {e.strerror}", NOT_UNPACKED) from None
            raise


class _Writer:
    """Puts members into a folder that nobody else writes into.

    Args:
        root: the folder, which is empty.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        #: The directories, with their modes and times, which are set at the end.
        self._attributes = {"": Member("", Kind.DIRECTORY, 0o755)}
        #: Paths of everything else. Hard links lead to these alone; those that came first wait.
        self._files: set[str] = set()
        self._links: list[Member] = []

    def add(self, member: Member, content: Content) -> None:
        """Write one member of a merged tree, in place of what is in its way.

        Raises:
            ImageError: the content is too short.
            OSError: it cannot be written.
        """
        if member.kind is Kind.HARDLINK:
            if member.target in self._files:
                self._link(member)
            else:
                self._links.append(member)
            return
        if member.kind is Kind.DIRECTORY:
            self._make_folder(member.path)
            self._attributes[member.path] = member
            return
        real = self._vacant(member.path)
        if member.kind is Kind.SYMLINK:
            os.symlink(member.target, real)
        elif member.kind is Kind.FIFO:
            os.mkfifo(real, 0o600)
            os.chmod(real, member.mode & _FILE_BITS)
        elif isinstance(member, _Unpacked):
            _link(member.content_path, real)
        else:
            _write_file(real, member, content)

    def finish(self) -> None:
        """Make the hard links, and set modes and times of the directories, the deepest first."""
        for link in self._links:
            if link.target not in self._files:
                what = f"hard link {link.path!r} to {link.target!r}"
                raise ImageError(f"{what}, which does not exist", NOT_UNPACKED)
            self._link(link)
        for path, member in sorted(self._attributes.items(), reverse=True):
            real = f"{self._root}/{path}"
            os.chmod(real, (member.mode & _FOLDER_BITS) | 0o700)
            if member.mtime:
                os.utime(real, (member.mtime, member.mtime))

    def _link(self, link: Member) -> None:
        """Make a hard link to a file that exists."""
        if link.path != link.target:
            os.link(f"{self._root}/{link.target}", self._vacant(link.path), follow_symlinks=False)

    def _vacant(self, path: str) -> str:
        """Return the place of a file without what a layer had there before; its folder exists."""
        self._make_folder(path.rpartition("/")[0])
        real = f"{self._root}/{path}"
        if path in self._files:
            os.unlink(real)
        elif path in self._attributes:
            for gone in (path, *(str(p)[len(self._root) + 1 :] for p in Path(real).rglob("*"))):
                self._files.discard(gone)
                self._attributes.pop(gone, None)
            remove_tree(Path(real))
        self._files.add(path)
        return real

    def _make_folder(self, path: str) -> None:
        """Make a directory and those above it. The members that list them set their modes."""
        if path not in self._attributes:
            os.mkdir(self._vacant(path), 0o700)
            self._files.remove(path)
            self._attributes[path] = Member(path, Kind.DIRECTORY, 0o755)


def _link(source: str, real: str) -> None:
    """Make a hard link; a copy on a file system without hard links, or if the file has too many."""
    try:
        os.link(source, real, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, real, follow_symlinks=False)


def _write_file(real: str, member: Member, content: Content) -> None:
    with os.fdopen(os.open(real, _NEW_FILE, 0o600), "wb", buffering=0) as file:
        left = member.size
        for data in content:
            left -= len(data)
            while data:
                data = data[file.write(data) :]
        if left:
            raise ImageError(f"the layer ends in the middle of {member.path!r}", NOT_UNPACKED)
        os.fchmod(file.fileno(), (member.mode & _FILE_BITS) | 0o400)
        os.utime(file.fileno(), (member.mtime, member.mtime))
