"""``builder cache verify``: hashes all that the cache holds, and removes what is corrupt.

A build takes a file for unchanged if size, inode and modification time are. A bit that a disk, a
cable or the memory flips changes none of these.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.parallel import in_parallel
from builder.progress import QUIET, Reporter, working
from builder.store.blobs import Store
from builder.store.files import sha256_file
from builder.store.records import is_corrupt

_TASK = "verifying the cache"
_MISMATCH = "its content does not match its digest"


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A file that was removed."""

    path: Path
    reason: str
    is_linked: bool
    """Whether the same file has another name elsewhere: in an OCI layout, or as a SIF in ``dist/``."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found in a cache."""

    files: int
    size: int
    """Bytes."""
    corrupt: tuple[Corrupt, ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """A file of the cache."""

    path: Path
    digest: str
    """Empty for a record, which holds its own."""
    size: int


def verify_cache(
    store: Store, others: Sequence[tuple[Path, str]] = (), *, jobs: int = 1, reporter: Reporter = QUIET
) -> Verified:
    """Hashes all blobs and records of a cache, and other files in it. Removes those that are corrupt.

    Builds may run at the same time. The time of the last use of a file stays.

    Args:
        store: the store of the cache.
        others: more files, with their digests.
        jobs: files that are hashed at the same time.
        reporter: receives progress.
    """
    items = [*_blobs(store), *_records(store)]
    for path, digest in others:
        with contextlib.suppress(FileNotFoundError):
            items.append(_Item(path, digest, path.stat().st_size))
    items.sort(key=lambda item: -item.size)  # no thread hashes a large one alone at the end

    def check(item: _Item) -> Corrupt | None:
        found = _check(item)
        reporter.advance(_TASK, item.size)
        return found

    with working(reporter, _TASK, sum(item.size for item in items)):
        results = in_parallel(check, items, jobs)
    corrupt = sorted((found for _, found in results if found is not None), key=lambda found: found.path)
    return Verified(len(items), sum(item.size for item in items), tuple(corrupt))


def _blobs(store: Store) -> Iterator[_Item]:
    for path, size in _files(store.blobs):
        if not path.suffix and not path.name.startswith("."):
            yield _Item(path, f"sha256:{path.name}", size)


def _records(store: Store) -> Iterator[_Item]:
    f = store.folders
    for folder in (f.layers, f.bytecode, f.wheels, f.index, f.names, f.bases, f.smoke, f.sif):
        for path, size in _files(folder):
            if path.suffix == ".json":
                yield _Item(path, "", size)


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), entry.stat().st_size


def _check(item: _Item) -> Corrupt | None:
    try:
        before = item.path.stat()
        if not item.digest:
            reason = _MISMATCH if is_corrupt(item.path) else ""
        else:
            reason = _MISMATCH if sha256_file(item.path) != item.digest else ""
        after = item.path.stat()
    except FileNotFoundError:
        return None  # another process removed it
    except OSError as e:
        reason, after = f"it cannot be read: {e.strerror}", before
    if not reason or (after.st_ino, after.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
        return None
    item.path.unlink(missing_ok=True)
    if item.digest:
        item.path.with_name(item.path.name + ".seen").unlink(missing_ok=True)
    return Corrupt(item.path, reason, after.st_nlink > 1)
