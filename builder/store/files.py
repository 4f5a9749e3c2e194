"""Files that are written whole or not at all, their digests, and room on the disk."""

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

CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """The ``sha256:...`` digest of a file, read in chunks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def fingerprint(path: Path) -> str:
    """What changes when a file does: size, inode and time."""
    info = path.stat()
    return f"{info.st_size} {info.st_ino} {info.st_mtime_ns}"


@contextmanager
def space_errors(where: Path) -> Iterator[None]:
    """Turns "no space left on device" and its kin into a :class:`SpaceError` that names the folder."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SpaceError(
                f"no space left while writing in {where}",
                "free some room (builder cache prune), or point BUILDER_CACHE / --tmpdir at a larger disk",
            ) from e
        if e.errno in (errno.EROFS, errno.EACCES, errno.ENOTDIR):
            raise SpaceError(
                f"cannot write in {where}: {e.strerror}",
                "point BUILDER_CACHE / --tmpdir at a folder of yours",
            ) from e
        raise


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes a small file beside its place and renames it: readers see the old file or the new one, never a part."""
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
    """Puts a finished file at its place without a moment in which half of it is there: a hard link where possible, else a copy.

    Raises:
        SpaceError: the disk is full or the folder cannot be written.
    """
    temporary = temporary_beside(target)
    with space_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                temporary.hardlink_to(source)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)  # of two links to one file, rename leaves both
    return target


def temporary_beside(path: Path) -> Path:
    """A name that nobody else uses, hidden, in the same folder as ``path``: write there, then rename."""
    return path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"


def link_or_copy(source: Path, target: Path) -> None:
    """Makes ``target``, which does not exist, a hard link to ``source``, or a copy where links are not possible."""
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, one without hard links, or a file of another user
        shutil.copyfile(source, target)


def remove_tree(folder: Path) -> None:
    """Removes a folder, even one whose modes forbid it (an image's root file system unpacked by this user).

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
    """Raises SpaceError unless ``folder``'s file system has ``needed`` bytes free."""
    probe = folder
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    if free < needed:
        raise SpaceError(
            f"{what} needs about {human_bytes(needed)} in {folder}, {human_bytes(free)} are free",
            "free some room, or choose another folder with --tmpdir / BUILDER_TMPDIR or BUILDER_CACHE",
        )
