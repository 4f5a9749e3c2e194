"""Fingerprints: which files were hashed already.

Hashing a large file takes seconds, and a build needs hundreds of files. After a file was hashed, a
*fingerprint file* records its size in bytes, its inode and its modification time in nanoseconds. As long as
these three are the same, the file counts as unchanged and is not hashed again. Example: the blob and its
fingerprint file::

    blobs/sha256/2c26b46b68ffc68f...          (the blob, 3 bytes)
    blobs/sha256/2c26b46b68ffc68f....seen     3 1835012 1793318400123456789

After an edit of the blob, the modification time differs. The next use hashes the blob and finds another
digest: :func:`verified` returns False. After a copy of the cache, inode and time differ, the blob is
hashed once more, and a new fingerprint is written.

The fingerprint files of files outside the cache (a wheel in a find-links folder) are in the folder ``seen``,
named after the digest. The modification time of a fingerprint file is the time of its last use, for ``builder
cache prune``.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from builder.store.files import fingerprint, sha256_file, write_atomic


def mark_verified(path: Path, seen: Path) -> None:
    """Records in ``seen`` that the file ``path``, as it is now, was hashed and has the expected digest."""
    write_atomic(seen, fingerprint(path).encode())


def verified(path: Path, digest: str, seen: Path) -> bool:
    """Whether the content of a file matches its digest; False also when there is no such file.

    Args:
        path: the file.
        digest: the expected digest, ``sha256:...``.
        seen: the fingerprint file. The file is hashed only when its fingerprint differs from this one.
    """
    try:
        current = fingerprint(path)
        if seen.exists() and seen.read_text() == current:
            with contextlib.suppress(PermissionError):
                os.utime(seen)
            return True
        if sha256_file(path) != digest:
            return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    mark_verified(path, seen)
    return True
