"""Whether a file is the locked package: only its hash decides, never where it comes from.

The store names blobs by SHA-256. Old locks have packages with an MD5 only; for these a record in
the cache's folder ``seen`` holds the SHA-256 of the file that matched the MD5, so that the next
build finds it in the store.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from builder.core.model import LockedPackage
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.store.fingerprints import compare
from builder.core.store.records import Record


class Verifier:
    """Compares files with the hashes of locked packages, and records the result in the cache."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def digest(self, package: LockedPackage) -> str | None:
        """Return the ``sha256:...`` of a package; None if only its MD5 is known."""
        if package.sha256:
            return f"sha256:{package.sha256}"
        return self._md5_record(package).read()

    def record_digest(self, package: LockedPackage, digest: str) -> None:
        """Record the ``sha256:...`` of a package that is locked by MD5."""
        if not package.sha256:
            self._md5_record(package).write(digest)

    def was_seen(self, package: LockedPackage) -> bool:
        """Return whether this machine had the package before: it is probably not hashed again."""
        digest = self.digest(package)
        if digest is None:
            return False
        return self._store.path(digest).exists() or self._store.seen_file(digest).exists()

    def matches(self, path: Path, package: LockedPackage) -> bool:
        """Return whether a local file is the package; False if it cannot be read."""
        try:
            if not path.is_file():
                return False
            digest = self.digest(package)
            if digest is None:
                if _md5(path) != package.md5:
                    return False
                digest = sha256_file(path)
                self.record_digest(package, digest)
            found = compare(path, digest, self._store.seen_file(digest))
            if found is None or not found.matches:
                return False
            if found.was_hashed:
                self._store.remember(path, digest)
            return True
        except PermissionError:
            return False

    def _md5_record(self, package: LockedPackage) -> Record[str]:
        return Record(self._store.seen_file(f"md5:{package.md5}"), str)


def _md5(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
