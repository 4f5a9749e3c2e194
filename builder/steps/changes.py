"""What a step changed, as the entries of a layer: the upper folder of an overlay, compared with the tree
below.

    lower (unpacked image)   upper (after the step)     layer
    etc/motd  "hello"        etc/motd  "hello"          (left out: only its time changed)
    etc/old                  etc/old   device 0/0       etc/.wh.old
    opt/a/x                  opt/a/    opaque, y        opt/a/, opt/a/.wh..wh..opq, opt/a/y
                             root/new                   root/ (mode of lower), root/new

Invariant: the layer over the image is the merged tree that the step saw, except for :data:`LEFT_OUT` and for
what no layer of builder has (owners, times, devices, sockets, extended attributes).
"""

# Path.readlink() would change the text of a symlink:
# ruff: noqa: PTH115

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from builder.layers.entry import Entry, Range

#: Paths that belong to a container and not to its image, with what is below them.
LEFT_OUT = frozenset(
    (
        *("dev", "proc", "run", "sys", "tmp", "var/tmp"),
        *("etc/hosts", "etc/hostname", "etc/resolv.conf", ".dockerenv"),
    )
)
_OPAQUE = "user.overlay.opaque"
_WHITEOUT = ".wh."
_OPAQUE_NAME = ".wh..wh..opq"


@dataclass
class Changes:
    """The changes in the upper folder of an overlay.

    Args:
        upper: the folder.
        lower: the tree below, whose paths have the same names.
        targets: absolute paths in the container that the runner created: mount points and HOME. They are
            left out where they are new and empty.
    """

    upper: Path
    lower: Path
    targets: Collection[str] = ()
    skipped: list[str] = field(default_factory=list)
    """Sockets, devices and named pipes, which are left out: absolute paths in the image."""
    _seen: dict[tuple[int, int], str] = field(default_factory=dict)
    """The first path of each file with several names."""
    _points: frozenset[str] = frozenset()

    def entries(self) -> Iterator[Entry]:
        """The members of the layer, parents first, sorted by the bytes of names."""
        self._points = frozenset(str(PurePosixPath(target)).strip("/") for target in self.targets)
        yield from self._children("", in_lower=True)

    def _children(self, folder: str, *, in_lower: bool) -> Iterator[Entry]:
        """The members below a folder of ``upper``; ``in_lower``: the tree below shows through."""
        with os.scandir(self.upper / folder) as found:
            names = sorted((item.name for item in found), key=os.fsencode)
        for name in names:
            path = f"{folder}/{name}" if folder else name
            if path not in LEFT_OUT:
                yield from self._one(path, in_lower=in_lower)

    def _one(self, path: str, *, in_lower: bool) -> Iterator[Entry]:
        info = (self.upper / path).lstat()
        below = _lstat(self.lower / path) if in_lower else None
        if stat.S_ISDIR(info.st_mode):
            yield from self._folder(path, info, below)
        elif _is_whiteout(info):
            if below is not None:
                folder, _, name = path.rpartition("/")
                yield Entry(f"{folder}/{_WHITEOUT}{name}".lstrip("/"), "file")
        elif path in self._points and below is None and info.st_size == 0:
            return
        elif stat.S_ISLNK(info.st_mode):
            target = os.readlink(self.upper / path)
            same = below is not None and stat.S_ISLNK(below.st_mode)
            if not (same and os.readlink(self.lower / path) == target):
                yield Entry(path, "symlink", 0o777, target=target)
        elif stat.S_ISREG(info.st_mode):
            yield from self._file(path, info, below)
        else:
            self.skipped.append(f"/{path}")

    def _folder(self, path: str, info: os.stat_result, below: os.stat_result | None) -> Iterator[Entry]:
        mode = stat.S_IMODE(info.st_mode)
        is_new = below is None or not stat.S_ISDIR(below.st_mode)
        opaque = not is_new and _is_opaque(self.upper / path)
        entry = Entry(path, "dir", mode)
        children = self._children(path, in_lower=not is_new and not opaque)
        first = next(children, None)
        if first is None:
            changed = below is not None and stat.S_IMODE(below.st_mode) != mode
            if not (is_new and not self._is_point(path)) and not changed and not opaque:
                return
        yield entry
        if opaque:
            yield Entry(f"{path}/{_OPAQUE_NAME}", "file")
        if first is not None:
            yield first
            yield from children

    def _is_point(self, path: str) -> bool:
        """Whether a new folder without members exists only because something was mounted in it."""
        names = (*self._points, *LEFT_OUT)
        return any(name == path or name.startswith(f"{path}/") for name in names)

    def _file(self, path: str, info: os.stat_result, below: os.stat_result | None) -> Iterator[Entry]:
        if below is not None and _same_file(self.upper / path, info, self.lower / path, below):
            return
        mode = stat.S_IMODE(info.st_mode)
        if info.st_nlink > 1:
            first = self._seen.setdefault((info.st_dev, info.st_ino), path)
            if first != path:
                yield Entry(path, "hardlink", mode, target=first)
                return
        yield Entry(path, "file", mode, info.st_size, content=Range(self.upper / path))


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def _same_file(path: Path, info: os.stat_result, other: Path, below: os.stat_result) -> bool:
    if (info.st_mode, info.st_size) != (below.st_mode, below.st_size):
        return False
    return filecmp.cmp(path, other, shallow=False)
