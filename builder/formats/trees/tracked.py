"""The files that git tracks in a checkout: those in its index (gitformat-index, versions 2 to 4).

git itself is not run: others may have made the checkout, and its settings name programs.
"""

from __future__ import annotations

import os
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path

from builder.core.store.reading import read_foreign

from .ignore import checkout_of
from .inside import is_inside
from .member import ancestors

#: Bytes of an index, which has about 100 for each file.
MAX_INDEX = 256 << 20
#: Bytes of a file that names a folder of git.
_MAX_LINE = 64 << 10
#: The folder that a repository is for, relative to it (git-config, core.worktree).
_WORKTREE = re.compile(r'(?im)^[ \t]*worktree[ \t]*=[ \t]*"?([^"\n]+)')
_SUBMODULE, _FOLDER = 0o160000, 0o040000
#: Bytes of an entry before its flags, with a SHA-1.
_FLAGS = 60
_HAS_MORE_FLAGS = 0x4000


def tracked_files(folder: Path) -> frozenset[str] | None:
    """Return the files that git tracks below a folder, and the folders that hold them.

    Paths are relative to the folder. Files of submodules are included. None if the folder is in no
    checkout of this user, root or its owner, or git has a form of index that builder does not read:
    split, sparse, or of a repository with SHA-256.
    """
    top = checkout_of(folder)
    if top is None:
        return None
    try:
        entries = [*_entries(read_foreign(git_folder(top) / "index", MAX_INDEX))]
    except (ValueError, struct.error, IndexError):
        return None
    start = "" if folder == top else f"{folder.relative_to(top).as_posix()}/"
    inside = {p.removeprefix(start): mode for p, mode in entries if p.startswith(start)}
    found = set(inside)
    for module in (name for name, mode in inside.items() if mode == _SUBMODULE):
        if (folder / module).resolve() != folder.resolve() / module:  # a symlink leads to it
            continue
        found |= {f"{module}/{name}" for name in tracked_files(folder / module) or ()}
    return frozenset(found.union(*map(ancestors, found)))


def git_folder(top: Path) -> Path:
    """Return git's folder of a checkout, also of a worktree or submodule, whose .git is a file.

    Raises:
        ValueError: it is outside of the checkout, and does not name this one as its own. Whoever
            made the checkout could show another repository of the user so.
    """
    line = git_line(top / ".git")
    own = top / (line.removeprefix("gitdir:").strip() or ".git")
    setting = _WORKTREE.search(f"{git_line(own / 'config')}\n{git_line(own / 'config.worktree')}")
    back = own / (git_line(own / "gitdir") or "gitdir")
    named = (back.parent, own / (setting[1] if setting else ""))
    if (
        is_inside(own, top)
        or not own.exists()
        or top.resolve() in [path.resolve() for path in named]
    ):
        return own
    folder = shlex.quote(str(top))
    command = f"git --git-dir={shlex.quote(str(own))} config core.worktree {folder}"
    if (own / "gitdir").exists():
        command = f"git -C {folder} worktree repair"
    raise ValueError(f"{own} is the repository of another folder; if it is this one's: {command}")


def git_line(path: Path) -> str:
    """Return the text of a small file of git's; empty if it is no file."""
    return os.fsdecode(read_foreign(path, _MAX_LINE)).strip()


def _entries(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield path and mode of the entries of an index.

    Raises:
        ValueError, struct.error, IndexError: the index is damaged, or has another form.
    """
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index of git")
    place, name = 12, b""
    for _ in range(count):
        (mode,) = struct.unpack_from(">I", data, place + 24)
        (flags,) = struct.unpack_from(">H", data, place + _FLAGS)
        start, kept = place + _FLAGS + (4 if flags & _HAS_MORE_FLAGS else 2), 0
        if version == 4:  # the path shares its beginning with the one before
            dropped, start = _number(data, start)
            kept = len(name) - dropped
        end = data.index(b"\0", start)
        name = name[:kept] + data[start:end]
        if mode & _SUBMODULE == _FOLDER:
            raise ValueError("a sparse index")
        if not {b"", b".", b".."}.isdisjoint(name.split(b"/")):
            raise ValueError("a path that git does not have")
        yield os.fsdecode(name), mode
        place = end + 1 if version == 4 else place + (end - place + 8) // 8 * 8
    while place + 28 <= len(data):  # extensions, before the hash of the index
        extension, size = struct.unpack_from(">4sI", data, place)
        if extension == b"link":
            raise ValueError("a split index")
        place += 8 + size


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable length, as in packs of git, and the place after it."""
    byte = data[place]
    value = byte & 0x7F
    while byte & 0x80:
        place += 1
        byte = data[place]
        value = (value + 1) << 7 | byte & 0x7F
    return value, place + 1
