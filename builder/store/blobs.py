"""A content-addressed store of blobs on disk: ``ROOT/blobs/sha256/<hex>``.

A blob is written under a temporary name in the same file system, hashed while it is written, and renamed into place, so
a name that exists holds a whole blob. Beside each blob lies a ``<hex>.seen`` file with the size, inode and mtime it had when
it was last hashed: a blob that still looks the same is believed, any other is hashed again, and removed when it is not what its
name says. Nothing in the store ever needs repair by hand; ``rm -r`` of any part is safe while no build runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import filelock

from builder.errors import BuilderError
from builder.store.files import fingerprint, sha256_file, space_errors, write_atomic
from builder.store.folders import CacheFolders


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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # a full disk says so again here; the first error is the one that counts
        self._path.unlink(missing_ok=True)


class Store:
    """The store under one cache folder. Safe for several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = CacheFolders(root)
        self.blobs = self.folders.blobs
        self.tmp = self.folders.tmp

    def path(self, digest: str) -> Path:
        """Where the blob of a ``sha256:...`` digest lies or would lie."""
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
            raise BuilderError(
                f"not a sha256 digest: {digest!r}", "digests look like sha256: and 64 hex digits"
            )
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
        mark_verified(path, path.with_name(path.name + ".seen"))
        return path

    def drop(self, digest: str) -> None:
        """Removes a blob if it is there."""
        path = self.path(digest)
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".seen").unlink(missing_ok=True)

    def verify(self, path: Path, digest: str) -> bool:
        """Whether a file, in the store or elsewhere, is what its digest says; hashed only when it changed since the last time."""
        if path == self.path(digest):
            return self.get(digest) is not None
        return verified(path, digest, self._seen_at(path, digest))

    def mark_verified(self, path: Path, digest: str) -> None:
        """Notes that a file outside the store has just been hashed, for :meth:`believes`."""
        mark_verified(path, self._seen_at(path, digest))

    def _seen_at(self, path: Path, digest: str) -> Path:
        return self.seen_file(f"{digest}-{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]}")

    def seen_file(self, digest: str) -> Path:
        """Where the fingerprint of a file *outside* the store (a wheel in find-links) is remembered."""
        return self.folders.seen / digest.replace(":", "-")

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds a lock of this cache, so that two builds do not make the same thing at once."""
        with space_errors(self.root):
            folder = self.folders.locks
            folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock")
        with lock:
            yield


def mark_verified(path: Path, seen: Path) -> None:
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
    mark_verified(path, seen)
    return True
