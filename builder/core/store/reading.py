"""Reads files that others wrote: never more than a bound, and without waiting for a pipe."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: The marks at the beginning of UTF-16.
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: What a message says of a file, by the error number of :func:`open_ordinary`.
_PROBLEMS = {errno.ELOOP: " is a symbolic link", errno.ENXIO: " is not an ordinary file"}
#: The hint for a file that this user may not read.
_DENIED = "let this user read it: chmod u+r '{0}'; ls -l '{0}' names its owner"


@contextmanager
def open_ordinary(
    path: Path, *, links: bool = False, pipes: bool = False
) -> Iterator[tuple[IO[bytes], os.stat_result]]:
    """Open a file in a folder that others write to; yields it and its properties.

    Args:
        path: the file.
        links: whether symlinks are followed.
        pipes: whether it may be a pipe or a device: ``<(COMMAND)``, ``/dev/null``. A pipe that
            nobody writes to is empty.

    Raises:
        OSError: it cannot be opened. ELOOP: it is a symlink, which is not followed. ENXIO: it is a
            folder, a socket, a device, or a pipe, which is not waited for.
    """
    follow = 0 if links else os.O_NOFOLLOW
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | follow)
    info = os.fstat(fd)
    is_pipe = stat.S_ISFIFO(info.st_mode) or stat.S_ISCHR(info.st_mode)
    if not stat.S_ISREG(info.st_mode) and not (pipes and is_pipe):
        os.close(fd)
        raise OSError(errno.ENXIO, "not an ordinary file", str(path))
    os.set_blocking(fd, True)
    with os.fdopen(fd, "rb") as file:
        yield file, info


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads files of one kind."""

    error: Callable[[str, str], Exception]
    """Makes the error of a message and a hint."""
    hint: str
    """How to correct a file."""
    most: int = 0
    """Bytes that :meth:`read` returns at most; a larger file is an error."""
    what: str = "file"
    """The word for a file in messages."""
    links: bool = True
    pipes: bool = False
    marked: bool = False
    """Whether a text may be UTF-16 that begins with its mark, as PowerShell writes it."""

    def read(self, path: Path, missing: str = "") -> bytes:
        """Return the content of a file.

        Args:
            path: the file.
            missing: the hint if it does not exist; empty: FileNotFoundError is raised.
        """
        with self.open(path, missing) as (file, info):
            data = file.read(self.most + 1)
        if not data and stat.S_ISFIFO(info.st_mode):
            raise self.error(f"{path}: nothing writes to this pipe", self.hint)
        if len(data) > self.most:
            raise self.error(f"{path}: the {self.what} has more than {self.most} bytes", self.hint)
        return data

    @contextmanager
    def open(self, path: Path, missing: str = "") -> Iterator[tuple[IO[bytes], os.stat_result]]:
        """Open a file; yields it and its properties. The arguments are those of :meth:`read`."""
        try:
            with open_ordinary(path, links=self.links, pipes=self.pipes) as opened:
                yield opened
        except FileNotFoundError:
            if not missing:
                raise
            raise self.error(f"{path}: no such {self.what}", missing) from None
        except OSError as e:
            problem = _PROBLEMS.get(e.errno or 0, f": cannot be read: {e.strerror}")
            hint = _DENIED.format(path) if e.errno == errno.EACCES else self.hint
            raise self.error(f"{path}{problem}", hint) from None

    def text(self, path: Path, missing: str = "") -> str:
        """Return the content of a text file. The arguments are those of :meth:`read`."""
        data = self.read(path, missing)
        is_utf16 = self.marked and data.startswith(_UTF16)
        try:
            return data.decode("utf-16" if is_utf16 else "utf-8-sig")
        except UnicodeDecodeError as e:
            line = data.count(b"\n", 0, e.start) + 1
            raise self.error(f"{path}:{line}: not UTF-8 text", self.hint) from None


def read_foreign(path: Path, most: int) -> bytes:
    """Return the last ``most`` bytes of a file that a container left; nothing if it is no file."""
    try:
        with open_ordinary(path) as (file, info):
            file.seek(max(0, info.st_size - most))
            return file.read(most)
    except OSError:
        return b""


def text_of(path: Path, errors: str = "replace") -> str:
    """Return the text of a small file of this machine; empty if it cannot be read.

    Args:
        path: the file.
        errors: of :meth:`bytes.decode`.
    """
    try:
        with open_ordinary(path, links=True) as (file, _):
            return file.read().decode("utf-8", errors)
    except OSError:
        return ""
