"""Writes tree members into a folder that becomes a root file system.

No member can reach outside the folder: every parent directory is resolved inside it, symlinks included, as if
the folder were the root. The last part of a path is never followed. Device nodes and extended attributes are
left out.
"""

# ruff: noqa: PTH101, PTH102, PTH108, PTH112, PTH114, PTH115, PTH208, PTH211, S103
# Layers have tens of thousands of files, and os is several times as fast as pathlib.

from __future__ import annotations

import os
import stat
from pathlib import Path

from builder.errors import ImageError
from builder.store.walk import remove_tree
from builder.trees.bounds import MAX_FOLDERS, Tally
from builder.trees.member import (
    DEVICES,
    DO_NOT_USE,
    Content,
    Kind,
    Member,
    clean_path,
    is_whiteout,
    parse_whiteout,
)

_MAX_LINKS = 40
#: The bits of a mode that remain, as everything belongs to this user: no setuid and setgid.
_FILE_BITS = 0o1777
#: The same of a folder, where setgid gives no rights; a layer made from the tree keeps it.
_FOLDER_BITS = 0o3777
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RootfsWriter:
    """Puts members into a folder, layer by layer from the bottom up.

    No other process writes into the folder. So the path of a directory that was resolved once stays valid
    until this writer changes it.

    Args:
        root: the folder, which exists. Everything in it belongs to this user.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        #: Path of a directory in the image -> its path on this machine.
        self._directories: dict[str, str] = {"": root}
        #: Real path of a directory -> the member with its mode and times, which are set at the end.
        self._attributes: dict[str, Member] = {}
        #: Real paths that the current layer added. Its own whiteouts do not remove them.
        self._fresh: set[str] = set()
        self._tally = Tally("the image")

    def new_layer(self) -> None:
        """Begins the next layer: its whiteouts apply to everything that was added so far."""
        self._fresh.clear()

    def finish(self) -> None:
        """Sets modes and times of the directories, the deepest first."""
        for path, member in sorted(self._attributes.items(), reverse=True):
            try:
                os.chmod(path, (member.mode & _FOLDER_BITS) | 0o700)
                os.utime(path, (member.mtime, member.mtime))
            except FileNotFoundError:
                continue  # a later layer removed it

    def add(self, member: Member, content: Content) -> None:
        """Puts one member in its place, or applies it when it is a whiteout.

        Raises:
            ImageError: the path is unsafe, a hard link has no target, or the content is too short.
            OSError: it cannot be written.
        """
        path = clean_path(member.path)
        self._tally.add_path(path)
        self._tally.add_content(member.size)
        if is_whiteout(path):
            self._apply_whiteout(path)
            return
        if not path:
            if member.kind is Kind.DIRECTORY:
                self._attributes[self.root] = member
            return
        folder, _, name = path.rpartition("/")
        real = f"{self._directory(folder)}/{name}"
        if member.kind in DEVICES:
            return
        if member.kind is Kind.DIRECTORY:
            self._make_directory(real, path, member)
        elif member.kind is Kind.FILE:
            self._write_file(real, member, content)
        elif member.kind is Kind.SYMLINK:
            self._make_symlink(real, member)
        elif member.kind is Kind.HARDLINK:
            self._make_hard_link(real, member)
        elif member.kind is Kind.FIFO:
            self._make_fifo(real, member)
        self._fresh.add(real)

    # one member ---------------------------------------------------------------------------------------------

    def _write_file(self, real: str, member: Member, content: Content) -> None:
        try:
            fd = os.open(real, _NEW_FILE, 0o600)
        except FileExistsError:
            self._clear(real)
            fd = os.open(real, _NEW_FILE, 0o600)
        try:
            left = member.size
            for data in content:
                _write_all(fd, data)
                left -= len(data)
            if left:
                raise ImageError(f"the layer ends in the middle of {member.path!r}", DO_NOT_USE)
            os.fchmod(fd, (member.mode & _FILE_BITS) | 0o400)
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)

    def _make_symlink(self, real: str, member: Member) -> None:
        self._clear(real)
        os.symlink(member.target, real)

    def _make_fifo(self, real: str, member: Member) -> None:
        self._clear(real)
        os.mkfifo(real, 0o600)
        os.chmod(real, member.mode & _FILE_BITS)

    def _make_hard_link(self, real: str, member: Member) -> None:
        target = clean_path(member.target)
        folder, _, name = target.rpartition("/")
        source = f"{self._directory(folder, make=False)}/{name}" if name else ""
        if not source or not os.path.lexists(source) or stat.S_ISDIR(os.lstat(source).st_mode):
            raise ImageError(
                f"hard link {member.path!r} to {member.target!r}, which does not exist", DO_NOT_USE
            )
        if source != real:
            self._clear(real)
            os.link(source, real, follow_symlinks=False)

    def _make_directory(self, real: str, path: str, member: Member) -> None:
        try:
            os.mkdir(real, 0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(real).st_mode):
                self._clear(real)
                os.mkdir(real, 0o700)
        self._directories[path] = real
        self._attributes[real] = member

    # removing -----------------------------------------------------------------------------------------------

    def _clear(self, real: str) -> None:
        """Removes what is at a path: a file, a link or a whole directory."""
        try:
            mode = os.lstat(real).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            remove_tree(Path(real))
            self._forget_directory(real)
        else:
            os.unlink(real)
            if stat.S_ISLNK(mode):
                self._directories = {"": self.root}  # paths may have led through the symlink
        self._fresh.discard(real)

    def _forget_directory(self, real: str) -> None:
        below = real + "/"
        self._attributes = {
            path: member
            for path, member in self._attributes.items()
            if path != real and not path.startswith(below)
        }
        self._fresh = {path for path in self._fresh if not path.startswith(below)}
        self._directories = {"": self.root}

    def _apply_whiteout(self, path: str) -> None:
        folder = self._directory(path.rpartition("/")[0], make=False)
        found = parse_whiteout(path)
        if not folder or found is None:
            return
        kind, hidden = found
        if kind is Kind.OPAQUE:
            self._hide(folder)
            return
        real = f"{folder}/{hidden.rpartition('/')[2]}"
        if real in self._fresh:
            return
        if self._has_fresh(real):
            self._hide(real)
        else:
            self._clear(real)

    def _has_fresh(self, real: str) -> bool:
        below = real + "/"
        return any(path.startswith(below) for path in self._fresh)

    def _hide(self, folder: str) -> None:
        """Removes what lower layers added to a directory; what the current layer added stays."""
        if not os.path.isdir(folder) or os.path.islink(folder):
            return
        for child in os.listdir(folder):
            real = f"{folder}/{child}"
            if real in self._fresh and not (os.path.isdir(real) and not os.path.islink(real)):
                continue
            if real in self._fresh or self._has_fresh(real):
                self._hide(real)
            else:
                self._clear(real)

    # finding directories ------------------------------------------------------------------------------------

    def _directory(self, path: str, make: bool = True) -> str:
        """The real path of a directory of the image.

        Args:
            path: a clean path of the image.
            make: create the directory, and its parents, where they are missing. False returns an empty text
                then.
        """
        known = self._directories.get(path)
        if known is None:
            known = self._resolve(path, make)
            if known:
                self._directories[path] = known
        return known

    def _resolve(self, path: str, make: bool) -> str:
        """Follows a path as the kernel would in a container whose root is the folder.

        ``pending`` holds the parts that are still to be followed, the next one last; ``at`` the real
        directories so far, below the root. A symlink puts the parts of its target into ``pending``, and
        ``..`` never leaves the root::

            lib -> /usr/lib     pending       at
            resolve lib/x       x lib         (root)
                                x lib usr     (root)     lib is a symlink to an absolute path
                                x lib         usr
                                x             usr lib
                                              usr lib x
        """
        pending = path.split("/")[::-1]
        at: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = at[:-1]
                continue
            real = "/".join([self.root, *at, part])
            mode = _mode(real)
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MAX_LINKS:
                    raise ImageError(f"too many symlinks in {path!r}", DO_NOT_USE)
                target = os.readlink(real)
                if target.startswith("/"):
                    at = []
                pending += target.split("/")[::-1]
                continue
            if not stat.S_ISDIR(mode):
                if not make:
                    return ""
                self._make_parent(real)
            at.append(part)
            if len(at) > MAX_FOLDERS:  # a symlink can lead deeper than any member's path
                deep = f"{len(at)} folders deep, at most {MAX_FOLDERS} are allowed"
                raise ImageError(f"{path[:60]!r} leads {deep}", DO_NOT_USE)
        return "/".join([self.root, *at])

    def _make_parent(self, real: str) -> None:
        """Creates a directory that no layer lists; replaces anything else at its path."""
        self._clear(real)
        os.mkdir(real, 0o755)
        os.chmod(real, 0o755)  # independent of the umask
        self._fresh.add(real)


def _mode(real: str) -> int:
    """The type and mode bits of a path, which is not followed; 0 where there is nothing."""
    try:
        return os.lstat(real).st_mode
    except FileNotFoundError:
        return 0


def _write_all(fd: int, data: bytes | memoryview) -> None:
    written = 0
    while written < len(data):
        written += os.write(fd, data[written:])
