"""Atomic writes, digests of files, hard links, and checks for free space."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from builder.core.errors import BuilderError, SpaceError
from builder.core.text import human_bytes

from .durable import sync_folder
from .temporary import removed_after, temporary_beside

#: Bytes read or written at once.
CHUNK = 1 << 20
#: The hint for what a user keeps: layouts, archives, SIFs.
OUTPUT_HINT = "free some space there, or choose another folder: --output FILE or --to oci:DIR"
_SPACE = "free some space (builder cache prune), or set BUILDER_CACHE or --tmpdir to a larger disk"
_CHOOSE = "choose a folder that you can write to (for the cache: BUILDER_CACHE, --tmpdir)"
#: The errors of a full disk, and of a quota.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


class ByteStream(Protocol):
    """A source of bytes: an open file, a decompressor, or a member of an archive."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


def pieces(stream: ByteStream, size: float = math.inf) -> Iterator[bytes]:
    """Yield the next ``size`` bytes of a stream, or all that follow; fewer if it ends before."""
    while data := stream.read(int(min(size, CHUNK))):
        size -= len(data)
        yield data


def sha256_of(chunks: Iterable[bytes | memoryview]) -> bytes:
    """Return the SHA-256 of a content that comes in pieces."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()


def sha256_file(path: Path) -> str:
    """Return the ``sha256:...`` digest of a file, read into one buffer."""
    with path.open("rb", buffering=0) as f:
        return f"sha256:{hashlib.file_digest(f, 'sha256').hexdigest()}"


def copy_hashed(source: Path, target: Path) -> str:
    """Copy a file and its permissions and return the ``sha256:...`` digest of the copied bytes."""
    digest = hashlib.sha256()
    with source.open("rb") as f, target.open("wb") as out:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
    shutil.copymode(source, target)
    return f"sha256:{digest.hexdigest()}"


def fingerprint(path: Path) -> str:
    """Return size, inode and modification time of a file as text; it differs after each change."""
    info = path.stat()
    return f"{info.st_size} {info.st_ino} {info.st_mtime_ns}"


class NotWritable(BuilderError):
    """A folder is read-only, or belongs to another user. What only saves time need not be written."""


@contextmanager
def space_errors(where: Path, hint: str = "") -> Iterator[None]:
    """Report a full disk, or a folder that cannot be written to, by its name; other errors pass.

    Errors of uv and rattler, which are no OSError, count if their text has the system's error.

    Args:
        where: the folder that the ``with`` block writes to.
        hint: the hint for a folder outside of the cache (:data:`OUTPUT_HINT`).

    Raises:
        SpaceError: the disk is full.
        NotWritable: the folder is read-only, or belongs to another user.
    """
    try:
        yield
    except Exception as e:
        if any(getattr(e, "errno", 0) == n or f"(os error {n})" in str(e) for n in DISK_FULL):
            raise SpaceError(f"no space left on the disk of {where}", hint or _SPACE) from e
        if isinstance(e, OSError) and e.errno in _NOT_WRITABLE and _concerns(e, where):
            raise NotWritable(f"cannot write to {where}: {e.strerror}", hint or _CHOOSE) from e
        raise


def _concerns(error: OSError, where: Path) -> bool:
    """Return whether an error may be about this folder, a folder above it, or a file in it."""
    if not isinstance(error.filename, str | bytes):
        return True
    path = Path(os.fsdecode(error.filename))
    return path.is_relative_to(where) or where.is_relative_to(path)


def mark_used(file: Path | int) -> None:
    """Set the time of last use, for ``builder cache prune``; nothing, where that is not possible."""
    with suppress(OSError):
        os.utime(file)


def write_atomic(path: Path, data: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    """Write a small file and rename it into place: readers see the old file or the new one.

    Args:
        path: the file; missing folders are created.
        data: the new content.
        mode: permission bits of the file.
        durable: whether the file has to survive a power loss from now on. Files whose content is
            checked when they are read do not need it.

    Raises:
        SpaceError: the disk is full.
        BuilderError: the folder cannot be written to.
    """
    with space_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with removed_after(temporary_beside(path)) as temporary:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(fd, "wb") as f:
                f.write(data)
                if durable:
                    f.flush()
                    os.fsync(fd)
            temporary.replace(path)
        if durable:
            sync_folder(path.parent)


def write_output(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file that the user has named. A device is written to: root would replace /dev/null.

    Not for files in folders that others can write to: writing to a pipe waits for its reader.

    Raises:
        SpaceError: the disk is full.
        BuilderError: the folder cannot be written to.
    """
    if path.is_char_device() or path.is_fifo():
        with space_errors(path.parent):
            path.write_bytes(data)
    else:
        write_atomic(path, data, mode)


def link_or_copy(source: Path, target: Path) -> None:
    """Create ``target`` as a hard link to ``source``, or as a copy where links are not possible."""
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, one without hard links, or a file of another user
        shutil.copyfile(source, target)


def require_space(folder: Path, needed: int, what: str) -> None:
    """Check for free space before something is written.

    Args:
        folder: where it is written; it need not exist yet.
        needed: bytes.
        what: what needs the space, for the message.

    Raises:
        SpaceError: the file system of ``folder`` has fewer than ``needed`` bytes free.
    """
    probe = folder
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    if free < needed:
        sizes = f"about {human_bytes(needed)} in {folder}, {human_bytes(free)} are free"
        raise SpaceError(f"{what} needs {sizes}", _SPACE)
