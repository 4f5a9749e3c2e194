"""Limits of file trees that others wrote: a small file must not become one that fills memory.

Members of layers and of squashfs partitions pass these checks before anything else looks at them.
"""

from __future__ import annotations

from builder.core.errors import ImageError
from builder.core.text import human_bytes

from .member import DO_NOT_USE, Member

#: Folders in each other. What walks a tree may then recurse; real images have at most 40 levels.
MAX_FOLDERS = 256
#: In characters: the kernel takes no longer path (PATH_MAX).
MAX_PATH = 4096
#: In bytes: the memory that the names of one tree may need. Enough for 4 million files.
MAX_NAMES = 1 << 30
#: In bytes: what a member needs in memory in addition to the characters of its path.
_PER_MEMBER = 128
#: In bytes: the content of all files of one tree.
MAX_CONTENT = 1 << 40
_SHOWN = 60


def check_path(path: str, where: str) -> None:
    """Raise ImageError when a path is too long or too deep."""
    if len(path) > MAX_PATH:
        long = f"a path of {len(path)} characters, at most {MAX_PATH} are allowed"
        raise ImageError(f"{where}: {long}: {shown_path(path)}", DO_NOT_USE)
    folders = path.count("/")
    if folders > MAX_FOLDERS:
        deep = f"{folders} folders deep, at most {MAX_FOLDERS} are allowed"
        raise ImageError(f"{where}: {shown_path(path)} is {deep}", DO_NOT_USE)


class Tally:
    """Counts the members of one tree and their content.

    Args:
        name: of the tree, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._names = self._content = 0

    def add(self, member: Member) -> None:
        """Count a member with a clean path.

        Raises:
            ImageError: its path is too long or too deep, or the tree too large.
        """
        self.add_path(member.path)
        self._names += len(member.target)
        self.add_content(member.size)

    def add_path(self, path: str) -> None:
        """Count a path. Raises as :meth:`add` does."""
        if len(path) > MAX_PATH or path.count("/") > MAX_FOLDERS:  # no call, for speed
            check_path(path, self._name)
        self._names += len(path) + _PER_MEMBER
        if self._names > MAX_NAMES:
            large = f"the names of its files need more than {human_bytes(MAX_NAMES)}"
            raise ImageError(f"{self._name}: {large}", DO_NOT_USE)

    def add_content(self, size: int) -> None:
        """Count the content of a file. Raises as :meth:`add` does."""
        self._content += size
        if self._content > MAX_CONTENT:
            large = f"its files have more than {human_bytes(MAX_CONTENT)}"
            raise ImageError(f"{self._name}: {large}", DO_NOT_USE)


def shown_path(text: str) -> str:
    """Return a path as a message can show it: short, in quotes, without control characters."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
