"""Fingerprints of the files that were hashed already.

Hashing a large file takes seconds, and a build needs hundreds of files. After a file was hashed, a
*fingerprint file* records its size in bytes, its inode and its modification time in nanoseconds. As
long as these three are the same, the file counts as unchanged and is not hashed again. Example: the
blob and its fingerprint file::

    blobs/sha256/2c26b46b68ffc68f...          (the blob, 3 bytes)
    blobs/sha256/2c26b46b68ffc68f....seen     3 1835012 1793318400123456789

After an edit of the blob, the modification time differs. The next use hashes the blob and finds
another digest: :func:`verified` returns False. After a copy of the cache, inode and time differ,
the blob is hashed once more, and a new fingerprint is written. A bit that the disk or the memory
flipped changes neither: :meth:`builder.core.store.blobs.Store.rehash` is for what is published.

The fingerprint files of files outside the cache (a wheel in a find-links folder) are in the folder
``seen``, named after the digest. The modification time of a fingerprint file is the time of its
last use, for ``builder cache prune``.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .files import NotWritable, fingerprint, mark_used, sha256_file, write_atomic
from .reading import text_of

#: How often a file is hashed that other processes replace meanwhile.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class ContentMatch:
    """The result of comparing a file's content with a digest."""

    fingerprint: str
    """Of the file that was compared."""
    matches: bool
    """Whether it has the expected digest."""
    was_hashed: bool
    """False: its fingerprint was known."""

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.fingerprint.split()[0])


def compare(path: Path, digest: str, seen: Path) -> ContentMatch | None:
    """Compare the content of a file with its digest; None when there is no such file.

    The result is about one file: if another process replaces it meanwhile, the new one is compared.

    Args:
        path: the file.
        digest: the expected digest, ``sha256:...``.
        seen: the fingerprint file. The file is hashed only when its fingerprint differs from this
            one.
    """
    for _ in range(_TRIES):
        try:
            current = fingerprint(path)
            # the file is not synced: after a power loss it may hold anything
            if text_of(seen) == current:
                mark_used(seen)
                return ContentMatch(current, True, False)
            matches = _has_digest(path, digest)
            if fingerprint(path) != current:
                continue
        except (FileNotFoundError, NotADirectoryError):
            return None
        if matches:
            with suppress(NotWritable):
                write_atomic(seen, current.encode())
        return ContentMatch(current, matches, True)
    return None


def _has_digest(path: Path, digest: str) -> bool:
    try:
        return sha256_file(path) == digest
    except OSError as e:
        if e.errno == errno.EIO:  # the disk cannot read it any more
            return False
        raise
