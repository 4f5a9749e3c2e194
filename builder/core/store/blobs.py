"""The store: blobs on disk, named by the digest of their content: ``CACHE/blobs/sha256/<hex>``.

A blob is written under a temporary name in the same file system, hashed while it is written, and
then renamed. So a digest that exists in the store always names a complete blob. A blob is hashed
again only when it looks different from when it was last hashed (see
:mod:`builder.core.store.fingerprints`), and once before it is published (:meth:`Store.place`). One
whose content does not match its digest is removed.

The store never needs a repair by hand. Any part of it may be removed with ``rm -r`` while no build
runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from builder.core.errors import BuilderError, ImageError

from .durable import durable_file, start_writing, sync_files
from .files import (
    OUTPUT_HINT,
    NotWritable,
    copy_hashed,
    fingerprint,
    sha256_file,
    space_errors,
    write_atomic,
)
from .fingerprints import compare
from .folders import CacheFolders
from .locks import file_lock
from .records import Record, T, read_record, write_record
from .temporary import SHARED_FOLDERS, remove_left_behind, removed_after, temporary_name
from .unchanged import look
from .walk import Stuck

log = logging.getLogger(__name__)


class BlobWriter(contextlib.AbstractContextManager["BlobWriter"]):
    """A blob that is being written. Leaving the context without :meth:`commit` discards it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = store.temporary()
        self._hash = hashlib.sha256()
        self.size = 0
        """Bytes written so far."""
        self._refusal: NotWritable | None = None
        """Why the cache cannot be written to: then only a blob that it has can be written."""
        try:
            with space_errors(store.root):
                self._file: BinaryIO = self._path.open("wb")
        except NotWritable as e:
            self._refusal = e
            self._file = Path(os.devnull).open("wb")  # noqa: SIM115  closed by __exit__

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes and return their number.

        Raises:
            SpaceError: the disk is full.
        """
        with space_errors(self._store.root):
            written = self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        return written

    def commit(self) -> tuple[str, int]:
        """Move the blob into the store. Returns its digest and its size in bytes.

        Raises:
            SpaceError: the disk is full.
            NotWritable: the cache cannot be written to, and does not have the blob.
        """
        digest = f"sha256:{self._hash.hexdigest()}"
        if self._refusal is not None:
            if self._store.get(digest, self.size) is None:
                raise self._refusal
            return digest, self.size
        with space_errors(self._store.root):
            self._file.flush()
            start_writing(self._file.fileno())
            self._file.close()
            self._store.adopt(self._path, digest)
        return digest, self.size

    def __exit__(self, *error: object) -> None:
        # Closing a file on a full disk fails a second time; the first error is the one to report.
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


@dataclass(frozen=True, slots=True)
class Reuse:
    """A published image and its record: layers that a build may use in place of its own.

    The record says which inputs made which layer (:mod:`builder.deliver.publishing.reuse`). Whoever
    wrote it decides what the build contains, so nothing that follows from it may reach a build
    which does not accept it: records of a build that reuses an image go into a folder of that
    image's record.
    """

    folder: Path
    """Receives the records of builds that reuse the image."""
    origin: str
    """``host/repository``."""
    layers: Mapping[str, str]
    """The diff ids of the layers that the repository has, by their digests."""
    records: Mapping[str, Any]
    """The image's record: records of a cache, by their paths in it."""


class Store:
    """The store of one cache folder. Several processes may use it at the same time."""

    def __init__(self, root: Path, find_reuse: Callable[[], Reuse | None] | None = None) -> None:
        self.root = root
        """The cache folder."""
        self._find_reuse = find_reuse
        self._reuse: Reuse | None = None
        self._has_looked = False
        self.folders = CacheFolders(root)
        self.blobs = self.folders.blobs
        self.tmp = self.folders.tmp
        self._hashed: dict[_Identity, str] = {}
        """Digests of files that this object has written or hashed: none is hashed twice."""

    # records

    @property
    def reuse(self) -> Reuse | None:
        """The image that is reused. It is looked for once, when the cache lacks something."""
        if not self._has_looked:
            self._has_looked = True
            self._reuse = self._find_reuse() if self._find_reuse else None
        return self._reuse

    def records(self, path: Path) -> Iterator[Any]:
        """Yield the cache's record of a path, and then those of the image that is reused."""
        if (own := read_record(path)) is not None:
            yield own
        if (reuse := self.reuse) is not None:
            name = path.relative_to(self.root).as_posix()
            found = (read_record(reuse.folder / name), reuse.records.get(name))
            yield from (record for record in found if record is not None)

    def record(self, path: Path, shape: type[T]) -> Record[T]:
        """Return the record of a path that is read as :meth:`records`, and written for this build.

        Args:
            path: in the cache.
            shape: the type of its value.
        """
        return Record(path, shape, self.records, self.write_record)

    def read_record(self, path: Path) -> Any:
        """Return the first of :meth:`records`; None if there is none."""
        return next(self.records(path), None)

    def write_record(self, path: Path, value: Any) -> None:
        """Write a record. That of a build which reuses an image is for such builds only.

        Raises:
            SpaceError: the disk is full.
        """
        folder = self.root if self._reuse is None else self._reuse.folder
        place = folder / path.relative_to(self.root)
        if read_record(place) != value:  # a cache that is read-only has it
            write_record(place, value)

    def locate(self, digest: str, size: int, diff_id: str) -> tuple[Path | None, str]:
        """Return the path of a layer here, or else the repository from which it is reused.

        Neither: None and an empty text.
        """
        path = self.get(digest, size)
        return path, "" if path else self.remote(digest, diff_id)

    def remote(self, digest: str, diff_id: str) -> str:
        """Return the repository from which a layer is reused; empty if it is not."""
        reuse = self.reuse
        return reuse.origin if reuse is not None and reuse.layers.get(digest) == diff_id else ""

    # blobs

    def path(self, digest: str) -> Path:
        """Return the path of the blob with this digest, whether or not it exists.

        Raises:
            BuilderError: not a digest of the form ``sha256:<64 hex digits>``.
        """
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
            hint = "a digest is 'sha256:' and 64 lower-case hex digits"
            raise BuilderError(f"not a sha256 digest: {digest!r}", hint)
        return self.blobs / value

    def get(self, digest: str, size: int | None = None) -> Path | None:
        """Return the path of a blob that matches its digest, or None; a corrupt one is removed.

        Args:
            digest: the blob's digest.
            size: the expected size in bytes; None accepts any.
        """
        path = self.path(digest)
        found = compare(path, digest, seen_of(path))
        if found is None:
            return None
        if not found.matches:
            self._discard(path, found.fingerprint)
            return None
        if found.was_hashed:
            self.remember(path, digest)
        return path if size is None or found.size == size else None

    def _discard(self, path: Path, read: str) -> None:
        """Remove a corrupt blob, unless another process has replaced it since it was read."""
        aside = self.temporary()
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
            if fingerprint(aside) == read:
                aside.unlink()
            else:
                aside.replace(path)

    def writer(self) -> BlobWriter:
        """Return a writer for a new blob whose digest is not known yet."""
        return BlobWriter(self)

    def add(self, data: bytes) -> str:
        """Store bytes that fit into memory and return their digest."""
        return self.add_pieces((data,))[0]

    def add_pieces(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Store a content that comes in pieces and return its digest and its size in bytes."""
        with self.writer() as out:
            for data in chunks:
                out.write(data)
            return out.commit()

    def adopt(self, temporary: Path, digest: str) -> Path:
        """Move a finished file of the same file system into the store and return its new path.

        The caller has hashed the file: ``digest`` is not checked. A blob that another build has
        stored meanwhile stays: on NFS, replacing it would fail the processes of other hosts that
        read it.
        """
        path = self.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        looks = _fingerprint_if_whole(path, digest)
        if looks:
            self.remember(path, digest)
            temporary.unlink()
        else:
            looks = fingerprint(temporary)
            self.remember(temporary, digest)
            temporary.replace(path)
        write_atomic(seen_of(path), looks.encode())
        return path

    def take(self, source: Path, digest: str) -> Path:
        """Store a file that is elsewhere, as a link or copy, if needed, and return the blob's path.

        Raises:
            ImageError: the file is missing, or its content does not match the digest.
            SpaceError: the disk is full.
        """
        if (stored := self.get(digest)) is not None:
            return stored
        with removed_after(self.temporary()) as temporary, space_errors(self.root):
            self.link_or_copy(source, temporary, digest)
            return self.adopt(temporary, digest)

    def drop(self, digest: str) -> None:
        """Remove a blob, if it exists."""
        path = self.path(digest)
        path.unlink(missing_ok=True)
        seen_of(path).unlink(missing_ok=True)

    # files that are published

    def rehash(self, path: Path, digest: str) -> bool:
        """Return whether the content of a file, in the store or elsewhere, matches a digest.

        Fingerprints do not count, because a bit that the disk flipped leaves them as they are. Only
        files that this object has written or hashed are not hashed again.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if self.was_hashed(path, digest):
            return True
        found = sha256_file(path)
        if found == digest:
            self.remember(path, digest)
        return found == digest

    def was_hashed(self, path: Path, digest: str) -> bool:
        """Return whether this object hashed a file with this digest, and it has not changed since.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return self._hashed.get(_identity(path)) == digest

    def remember(self, path: Path, digest: str) -> None:
        """Record for :meth:`was_hashed` that a file was just hashed and has this digest."""
        with contextlib.suppress(FileNotFoundError):
            self._hashed[_identity(path)] = digest

    def place(self, source: Path, target: Path, digest: str) -> None:
        """Place a published file at ``target`` in one step: a hard link if possible, else a copy.

        The content is compared with the digest, and is on the disk at the end.

        Raises:
            ImageError: the file is missing, or is corrupt; one of the cache is removed.
            SpaceError: the disk is full.
            BuilderError: the folder cannot be written to.
        """
        with space_errors(target.parent, OUTPUT_HINT):
            if _is_same(source, target) or self.verify(target, digest):
                look(target)
                sync_files([target])
                return
            with durable_file(target) as temporary:
                self.link_or_copy(source, temporary, digest)
                if not _is_same(source, temporary):
                    self.mark_verified(target, digest, temporary)

    def link_or_copy(self, source: Path, target: Path, digest: str) -> None:
        """Create ``target`` as a link or copy, and compare the content with the digest.

        Raises:
            ImageError: see :meth:`place`.
        """
        try:
            try:
                target.hardlink_to(source)
            except FileNotFoundError:
                raise
            except OSError:  # another file system, no hard links, or a file of another user
                matches = copy_hashed(source, target) == digest
            else:
                matches = self.rehash(source, digest)
        except FileNotFoundError as e:
            if source.exists():
                raise
            raise ImageError(f"{source} is missing from the cache", "run the command again") from e
        if not matches:
            self.refuse(source, digest)
        self.remember(target, digest)

    def refuse(self, path: Path, digest: str) -> NoReturn:
        """Raise the error about a corrupt file; one of the cache is removed first."""
        hint = "write it again"
        with contextlib.suppress(OSError):
            if self.path(digest).exists() and self.path(digest).samefile(path):
                self.drop(digest)
            if path.is_relative_to(self.root):
                path.unlink(missing_ok=True)
                hint = "the file was removed from the cache: run the command again"
                log.info("removed %s from the cache: it is corrupt", path.name)
        raise ImageError(f"{path} is corrupt: its content does not match its digest {digest}", hint)

    # files outside the store

    def verify(self, path: Path, digest: str) -> bool:
        """Return whether the content of a file, in the store or elsewhere, matches a digest.

        The file is hashed only when it changed since the last time. A corrupt blob of the store is
        removed.
        """
        if path == self.path(digest):
            return self.get(digest) is not None
        found = compare(path, digest, self._seen_at(path, digest))
        return found is not None and found.matches

    def mark_verified(self, path: Path, digest: str, file: Path | None = None) -> None:
        """Record for :meth:`verify` that a file outside the store has this digest.

        Args:
            path: the file.
            digest: its digest.
            file: the file under another name, if it gets the name ``path`` later: another process
                may replace it there at once. None: it is at ``path``.
        """
        self.remember(file or path, digest)
        with contextlib.suppress(NotWritable):
            write_atomic(self._seen_at(path, digest), fingerprint(file or path).encode())

    def _seen_at(self, path: Path, digest: str) -> Path:
        key = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
        return self.seen_file(f"{digest}-{key}")

    def seen_file(self, name: str) -> Path:
        """Return the fingerprint file of a file outside the store; ``name`` is DIGEST-KEY."""
        return self.folders.seen / name.replace(":", "-")

    # temporary files and locks

    def temporary(self) -> Path:
        """Return a new unique path in the store's file system, for a file of this process.

        :meth:`sweep` of a later build removes the file if this process is killed.
        """
        with space_errors(self.root):
            self.tmp.mkdir(parents=True, exist_ok=True)
        return self.tmp / temporary_name()

    def sweep(self, *folders: Path, stuck: Stuck = bool) -> int:
        """Remove temporary files that killed builds left in the store, ``folders`` and /tmp.

        ``stuck`` receives what cannot be removed.

        Returns:
            The bytes freed.
        """
        swept = {self.tmp, *SHARED_FOLDERS, *folders}
        return sum(remove_left_behind(folder, stuck) for folder in swept)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock of this cache, so that two builds do not do the same work at the same time.

        Where the file system has no locks, they may: the ``with`` block is right without the lock.
        """
        with space_errors(self.root):
            folder = self.folders.locks
            folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"):
            yield


#: Device, inode, size and modification time: the same for all links to a file, and other after a change.
_Identity = tuple[int, int, int, int]


def _identity(path: Path) -> _Identity:
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except FileNotFoundError:
        return False


def _fingerprint_if_whole(blob: Path, digest: str) -> str:
    """Hash a blob; return its fingerprint if it matches its digest, else an empty text."""
    try:
        looks = fingerprint(blob)
        return looks if sha256_file(blob) == digest else ""
    except OSError:
        return ""


def seen_of(blob: Path) -> Path:
    """Return the fingerprint file of a blob."""
    return blob.with_name(blob.name + ".seen")
