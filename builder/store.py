"""A content-addressed store of blobs on disk: ``ROOT/blobs/sha256/<hex>``.

A blob is written under a temporary name in the same file system, hashed while it is written, and renamed into place, so
a name that exists holds a whole blob. Beside each blob lies a ``<hex>.seen`` file with the size, inode and mtime it had when
it was last hashed: a blob that still looks the same is believed, any other is hashed again, and removed when it is not what its
name says. Nothing in the store ever needs repair by hand; ``rm -r`` of any part is safe while no build runs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import filelock

from builder.errors import BuilderError, SpaceError
from builder.model import canonical_json

CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """The ``sha256:...`` digest of a file, read in chunks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


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
                f"cannot write in {where}: {e.strerror}", "point BUILDER_CACHE / --tmpdir at a folder of yours"
            ) from e
        raise


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes a small file beside its place and renames it: readers see the old file or the new one, never a part."""
    with space_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(fd, "wb") as f:
                f.write(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_record(path: Path, value: Any) -> None:
    """Writes JSON that :func:`read_record` believes only as long as no byte of it has changed."""
    data = canonical_json(value)
    write_atomic(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def read_record(path: Path) -> Any:
    """What :func:`write_record` wrote, or None when it is not there or damaged."""
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
        with contextlib.suppress(PermissionError):
            os.utime(path)  # when it was last used
    except OSError:
        return None
    return json.loads(data) if hashlib.sha256(data).hexdigest().encode() == digest else None


class BlobWriter:
    """A blob being written. Use as a context manager; leaving without :meth:`commit` throws the bytes away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = store.tmp / f"blob-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        self._hash = hashlib.sha256()
        self.size = 0
        with space_errors(store.root):
            store.tmp.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._path.open("wb")

    def __enter__(self) -> BlobWriter:
        return self

    def write(self, data: bytes | memoryview) -> int:
        """Appends bytes. Raises SpaceError when the disk is full."""
        with space_errors(self._store.root):
            n = self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        return n

    def commit(self) -> tuple[str, int]:
        """Puts the blob into the store; gives its digest and its size in bytes."""
        with space_errors(self._store.root):
            self._file.close()
            digest = f"sha256:{self._hash.hexdigest()}"
            self._store.adopt(self._path, digest)
        return digest, self.size

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # a full disk says so again here; the first error is the one that counts
        self._path.unlink(missing_ok=True)


class Store:
    """The store under one cache folder. Safe for several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = root / "blobs" / "sha256"
        self.tmp = root / "tmp"

    def path(self, digest: str) -> Path:
        """Where the blob of a ``sha256:...`` digest lies or would lie."""
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
            raise BuilderError(f"not a sha256 digest: {digest!r}", "digests look like sha256: and 64 hex digits")
        return self.blobs / value

    def get(self, digest: str, size: int | None = None) -> Path | None:
        """The blob's path when it is there and is what its name says (and of ``size`` bytes when given), else None.

        A damaged blob is removed.
        """
        path = self.path(digest)
        if not verified(path, digest, path.with_name(path.name + ".seen")):
            path.unlink(missing_ok=True)
            return None
        return path if size is None or path.stat().st_size == size else None

    def sweep(self, *folders: Path) -> int:
        """Removes what builds that were killed on this host left half-written here and in ``folders``; gives the bytes freed."""
        freed = 0
        for folder in {self.tmp, *folders}:
            for path in folder.glob(f"blob-{socket.gethostname()}-*"):
                pid = path.name.removeprefix(f"blob-{socket.gethostname()}-").partition("-")[0]
                if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                    with contextlib.suppress(FileNotFoundError):
                        freed += path.stat().st_size
                        if path.is_dir():
                            shutil.rmtree(path, ignore_errors=True)
                        else:
                            path.unlink()
        return freed

    def writer(self) -> BlobWriter:
        """A new blob."""
        return BlobWriter(self)

    def add(self, data: bytes) -> str:
        """Stores small data; gives its digest."""
        with self.writer() as out:
            out.write(data)
            return out.commit()[0]

    def adopt(self, temporary: Path, digest: str) -> Path:
        """Moves a finished file of the same file system into the store. The caller has hashed it."""
        path = self.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(path)
        remember(path, path.with_name(path.name + ".seen"))
        return path

    def drop(self, digest: str) -> None:
        """Removes a blob if it is there."""
        path = self.path(digest)
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".seen").unlink(missing_ok=True)

    def believes(self, path: Path, digest: str) -> bool:
        """Whether a file, in the store or elsewhere, is what its digest says; hashed only when it changed since the last time."""
        if path == self.path(digest):
            return self.get(digest) is not None
        return verified(path, digest, self._seen_at(path, digest))

    def remember(self, path: Path, digest: str) -> None:
        """Notes that a file outside the store has just been hashed, for :meth:`believes`."""
        remember(path, self._seen_at(path, digest))

    def _seen_at(self, path: Path, digest: str) -> Path:
        return self.seen_file(f"{digest}-{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]}")

    def seen_file(self, digest: str) -> Path:
        """Where the fingerprint of a file *outside* the store (a wheel in find-links) is remembered."""
        return self.root / "seen" / digest.replace(":", "-")

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds a lock of this cache, so that two builds do not make the same thing at once."""
        with space_errors(self.root):
            folder = self.root / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock")
        with lock:
            yield


def fingerprint(path: Path) -> str:
    """What changes when a file does: size, inode and time."""
    info = path.stat()
    return f"{info.st_size} {info.st_ino} {info.st_mtime_ns}"


def remember(path: Path, seen: Path) -> None:
    """Notes that a file has just been hashed: :func:`verified` believes it while it looks the same."""
    write_atomic(seen, fingerprint(path).encode())


def verified(path: Path, digest: str, seen: Path) -> bool:
    """Whether a file is what the digest says, hashing it only when it changed since ``seen`` was written."""
    try:
        looks = fingerprint(path)
        if seen.exists() and seen.read_text() == looks:
            with contextlib.suppress(PermissionError):
                os.utime(seen)  # when it was last used: what `builder cache prune` goes by
            return True
        if sha256_file(path) != digest:
            return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    remember(path, seen)
    return True


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raises SpaceError unless ``folder``'s file system has ``needed`` bytes free."""
    probe = folder
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    if free < needed:
        raise SpaceError(
            f"{what} needs about {_size(needed)} in {folder}, {_size(free)} are free",
            "free some room, or choose another folder with --tmpdir / BUILDER_TMPDIR or BUILDER_CACHE",
        )


def _size(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"
