"""The store: blobs on disk, named by the digest of their content: ``CACHE/blobs/sha256/<hex>``.

A blob is written under a temporary name in the same file system, hashed while it is written, and then
renamed. So a digest that exists in the store always names a complete blob. A blob is hashed again only when
it looks different from when it was last hashed (see :mod:`builder.store.fingerprints`); one whose content
does not match its digest is removed.

The store never needs a repair by hand. Any part of it may be removed with ``rm -r`` while no build runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import filelock

from builder.errors import BuilderError
from builder.store.files import space_errors
from builder.store.fingerprints import mark_verified, verified
from builder.store.folders import CacheFolders
from builder.store.temporary import remove_left_behind, temporary_name


class BlobWriter:
    """A blob that is being written. Leaving the context without :meth:`commit` discards the bytes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = store.temporary()
        self._hash = hashlib.sha256()
        self.size = 0
        """Bytes written so far."""
        with space_errors(store.root):
            self._file: BinaryIO = self._path.open("wb")

    def __enter__(self) -> BlobWriter:
        return self

    def write(self, data: bytes | memoryview) -> int:
        """Appends bytes and returns their number.

        Raises:
            SpaceError: the disk is full.
        """
        with space_errors(self._store.root):
            written = self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        return written

    def commit(self) -> tuple[str, int]:
        """Moves the blob into the store. Returns its digest and its size in bytes.

        Raises:
            SpaceError: the disk is full.
        """
        with space_errors(self._store.root):
            self._file.close()
            digest = f"sha256:{self._hash.hexdigest()}"
            self._store.adopt(self._path, digest)
        return digest, self.size

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing a file on a full disk fails a second time; the first error is the one to report.
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


class Store:
    """The store of one cache folder. Several processes may use it at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        """The cache folder."""
        self.folders = CacheFolders(root)
        self.blobs = self.folders.blobs
        self.tmp = self.folders.tmp

    # blobs

    def path(self, digest: str) -> Path:
        """The path of the blob with this digest, whether or not it exists.

        Raises:
            BuilderError: not a digest of the form ``sha256:<64 hex digits>``.
        """
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
            raise BuilderError(
                f"not a sha256 digest: {digest!r}",
                "a digest is 'sha256:' and 64 lower-case hex digits",
            )
        return self.blobs / value

    def get(self, digest: str, size: int | None = None) -> Path | None:
        """The path of a blob whose content matches its digest, or None. A corrupt blob is removed.

        Args:
            digest: the blob's digest.
            size: the expected size in bytes; None accepts any.
        """
        path = self.path(digest)
        if not verified(path, digest, _seen_beside(path)):
            path.unlink(missing_ok=True)
            return None
        return path if size is None or path.stat().st_size == size else None

    def writer(self) -> BlobWriter:
        """A writer for a new blob whose digest is not known yet."""
        return BlobWriter(self)

    def add(self, data: bytes) -> str:
        """Stores bytes that fit into memory; returns their digest."""
        with self.writer() as out:
            out.write(data)
            return out.commit()[0]

    def adopt(self, temporary: Path, digest: str) -> Path:
        """Moves a finished file of the same file system into the store; returns its new path.

        The caller has hashed the file: ``digest`` is not checked.
        """
        path = self.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(path)
        mark_verified(path, _seen_beside(path))
        return path

    def drop(self, digest: str) -> None:
        """Removes a blob, if it exists."""
        path = self.path(digest)
        path.unlink(missing_ok=True)
        _seen_beside(path).unlink(missing_ok=True)

    # files outside the store

    def verify(self, path: Path, digest: str) -> bool:
        """Whether the content of a file, in the store or elsewhere, matches a digest.

        The file is hashed only when it changed since the last time. A corrupt blob of the store is removed.
        """
        if path == self.path(digest):
            return self.get(digest) is not None
        return verified(path, digest, self._seen_at(path, digest))

    def mark_verified(self, path: Path, digest: str) -> None:
        """Records for :meth:`verify` that a file outside the store was just hashed and has this digest."""
        mark_verified(path, self._seen_at(path, digest))

    def _seen_at(self, path: Path, digest: str) -> Path:
        place = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
        return self.seen_file(f"{digest}-{place}")

    def seen_file(self, name: str) -> Path:
        """The path of the fingerprint file for a file outside the store; ``name`` begins with its digest."""
        return self.folders.seen / name.replace(":", "-")

    # temporary files and locks

    def temporary(self) -> Path:
        """A new unique path for a file that this process writes, in the file system of the store.

        :meth:`sweep` of a later build removes the file if this process is killed.
        """
        with space_errors(self.root):
            self.tmp.mkdir(parents=True, exist_ok=True)
        return self.tmp / temporary_name()

    def sweep(self, *folders: Path) -> int:
        """Removes temporary files that killed builds left in the store and in ``folders``.

        Returns:
            The bytes freed.
        """
        return sum(remove_left_behind(folder) for folder in {self.tmp, *folders})

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds a lock of this cache, so that two builds do not do the same work at the same time."""
        with space_errors(self.root):
            folder = self.folders.locks
            folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock")
        with lock:
            yield


def _seen_beside(blob: Path) -> Path:
    return blob.with_name(blob.name + ".seen")
