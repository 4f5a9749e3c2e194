"""The folder into which a source is unpacked: no member can leave it, and none is larger than
allowed.

Files and folders are written first, symlinks at the end (:meth:`Target.finish`). So no path that is
written leads through a symlink of the source, whatever the order of its members.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from pathlib import Path

from builder.core.errors import FetchError
from builder.core.store.files import pieces, space_errors
from builder.core.text import human_bytes

from .bounds import MAX_DEPTH, MAX_MEMBERS, MAX_PATH, MAX_UNPACKED

#: The pieces of a file.
Content = Iterable[bytes | memoryview]
_HOSTILE = "the source is damaged or hostile: do not use it"


class Target:
    """A new folder for one source.

    Args:
        folder: it does not exist yet, or is empty.
        name: of the source, for messages.
        most: bytes that its files may have.
    """

    def __init__(self, folder: Path, name: str, most: int = MAX_UNPACKED) -> None:
        self.folder = folder
        self.name = name
        self._most = most
        self._members = self._size = 0
        self._links: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add_folder(self, path: str) -> None:
        """Make a folder. Raises as :meth:`add_file`."""
        with space_errors(self.folder):
            try:
                self._place(path).mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise self._twice(path) from None

    def add_file(self, path: str, size: int, content: Content, *, executable: bool = False) -> None:
        """Write a file of ``size`` bytes.

        Raises:
            FetchError: the path leads out of the folder or exists already, or the source is too
                large or ends too early.
            SpaceError: the disk is full.
        """
        place = self._place(path)
        self._size += size
        if self._size > self._most:
            problem = f"{self.name}: its files have more than {human_bytes(self._most)}"
            raise FetchError(problem, _HOSTILE)
        with space_errors(self.folder):
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            except (FileExistsError, IsADirectoryError, NotADirectoryError):
                raise self._twice(path) from None
            with os.fdopen(fd, "wb") as file:
                written = sum(map(file.write, content))
            place.chmod(0o755 if executable else 0o644)
        if written != size:
            raise FetchError(f"{self.name}: {path!r} ends too early", "fetch it again")

    def add_copy(self, path: str, original: str) -> None:
        """Write a hard link to an earlier file. Raises as :meth:`add_file`."""
        source = self._place(original)
        if not source.is_file():
            raise FetchError(f"{self.name}: {path!r} is a link to a missing file", _HOSTILE)
        info = source.stat()
        with source.open("rb") as content:
            executable = bool(info.st_mode & 0o100)
            self.add_file(path, info.st_size, pieces(content), executable=executable)

    def add_link(self, path: str, target: str) -> None:
        """Note a symlink. Raises FetchError if it leads out of the folder, or is too long."""
        self._place(path)
        where = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if target.startswith("/") or where == ".." or where.startswith("../"):
            raise FetchError(
                f"{self.name}: the symlink {path!r} leads out of the source, to {target[:80]!r}",
                "builder does not unpack such a source: ask its authors, or copy what you need of it",
            )
        if not target or len(target) > MAX_PATH or "\0" in target:
            raise FetchError(f"{self.name}: the symlink {path!r} has no valid target", _HOSTILE)
        self._links[path] = target

    def finish(self) -> None:
        """Make the symlinks. Raises FetchError if one has the path of another member."""
        for path, target in self._links.items():
            place = self.folder / path
            if any(posixpath.normpath(str(parent)) in self._links for parent in Path(path).parents):
                raise FetchError(f"{self.name}: {path!r} lies below a symlink", _HOSTILE)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)
            except (FileExistsError, NotADirectoryError):
                raise self._twice(path) from None
        self._check_links()

    def _twice(self, path: str) -> FetchError:
        return FetchError(f"{self.name}: {path!r} appears twice", _HOSTILE)

    def _check_links(self) -> None:
        """Raise FetchError if a link that is inside by its text leads out through another link."""
        root = self.folder.resolve()
        for path in self._links:
            try:
                real = (self.folder / path).resolve()
            except (OSError, RuntimeError):  # a circle
                continue
            if not real.is_relative_to(root):
                problem = f"{self.name}: the symlink {path!r} leads out of the source"
                raise FetchError(problem, _HOSTILE)

    def _place(self, path: str) -> Path:
        """Return the place of a member."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise FetchError(f"{self.name}: more than {MAX_MEMBERS} files", _HOSTILE)
        parts = path.split("/")
        bad = any(part in ("", ".", "..") for part in parts)
        if bad or "\0" in path or len(path) > MAX_PATH or len(parts) > MAX_DEPTH:
            shown = path if len(path) <= 80 else path[:80] + "..."
            raise FetchError(f"{self.name}: {shown!r} is not a path that is unpacked", _HOSTILE)
        return self.folder / path


def only_folder(folder: Path) -> Path:
    """Return the one folder in a folder, as most archives have it; else the folder itself."""
    found = list(folder.iterdir())
    is_only = len(found) == 1 and found[0].is_dir() and not found[0].is_symlink()
    return found[0] if is_only else folder
