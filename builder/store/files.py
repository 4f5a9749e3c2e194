"""Atomic writes, digests of files, hard links, removal of folders, and checks for free space."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.errors import SpaceError
from builder.text import human_bytes

#: Bytes read or written at once.
CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """The ``sha256:...`` digest of a file, read in chunks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def fingerprint(path: Path) -> str:
    """Size, inode and modification time of a file as text; it differs after every change of the file."""
    info = path.stat()
    return f"{info.st_size} {info.st_ino} {info.st_mtime_ns}"


@contextmanager
def space_errors(where: Path) -> Iterator[None]:
    """Reports a full or read-only disk with the name of the folder. Other errors pass through.

    Args:
        where: the folder that the ``with`` block writes to.

    Raises:
        SpaceError: in place of the OSError of the block.
    """
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SpaceError(
                f"no space left on the disk of {where}",
                "free some space (builder cache prune), or set BUILDER_CACHE or --tmpdir to a larger disk",
            ) from e
        if e.errno in (errno.EROFS, errno.EACCES, errno.ENOTDIR):
            raise SpaceError(
                f"cannot write to {where}: {e.strerror}",
                "set BUILDER_CACHE or --tmpdir to a folder that you can write to",
            ) from e
        raise


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes a small file under a temporary name and renames it: readers see the old file or the new one.

    Args:
        path: the file; missing folders are created.
        data: the new content.
        mode: permission bits of the file.

    Raises:
        SpaceError: the disk is full or the folder cannot be written to.
    """
    with space_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(path)
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(fd, "wb") as f:
                f.write(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def place_file(source: Path, target: Path) -> Path:
    """Places a finished file at ``target`` in one step: a hard link where possible, else a copy.

    Returns:
        ``target``.

    Raises:
        SpaceError: the disk is full or the folder cannot be written to.
    """
    temporary = temporary_beside(target)
    with space_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                temporary.hardlink_to(source)
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(source, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)  # rename(2) leaves both names if they are links to one file
    return target


def temporary_beside(path: Path) -> Path:
    """A unique hidden name in the folder of ``path``: write there, then rename to ``path``."""
    return path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"


def link_or_copy(source: Path, target: Path) -> None:
    """Creates ``target`` as a hard link to ``source``, or as a copy where links are not possible."""
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, one without hard links, or a file of another user
        shutil.copyfile(source, target)


def remove_tree(folder: Path) -> None:
    """Removes a folder, even if its permissions forbid it (an unpacked root file system has such folders).

    Raises:
        OSError: a part of it belongs to another user.
    """

    def make_writable_and_retry(function: object, path: str, error: object) -> None:
        failed = Path(path)
        for place in (failed.parent, failed):
            if place.is_dir() and not place.is_symlink():
                place.chmod(0o700)
        if failed.is_dir() and not failed.is_symlink():
            shutil.rmtree(failed, ignore_errors=True)
        else:
            failed.unlink(missing_ok=True)

    shutil.rmtree(folder, onerror=make_writable_and_retry)


def require_space(folder: Path, needed: int, what: str) -> None:
    """Checks for free space before something is written.

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
        raise SpaceError(
            f"{what} needs about {human_bytes(needed)} in {folder}, {human_bytes(free)} are free",
            "free some space, or choose another folder with --tmpdir, BUILDER_TMPDIR or BUILDER_CACHE",
        )
