"""The digests of SIF files, which are hashed again only when they change.

The digest of a file is not known before, so there is a record for each path.
"""

from __future__ import annotations

from pathlib import Path

from builder.core.store.blobs import Store
from builder.core.store.files import fingerprint, sha256_file
from builder.core.store.records import Record


def sif_digest(path: Path, store: Store) -> str:
    """Return the ``sha256:...`` digest of a SIF, computed if it is not recorded."""
    digest = remembered_digest(path, store)
    if digest is None:
        looks = fingerprint(path)
        digest = sha256_file(path)
        if fingerprint(path) == looks:  # else another process replaced it meanwhile
            store.remember(path, digest)
            remember_digest(path, store, digest, looks)
    return digest


def remembered_digest(path: Path, store: Store) -> str | None:
    """Return the digest of a file that has not changed since it was hashed; otherwise None."""
    known = _record(path, store).read()
    if known is None or known["fingerprint"] != fingerprint(path):
        return None
    return known["digest"]


def remember_digest(path: Path, store: Store, digest: str, looks: str) -> None:
    """Record that a file was just hashed.

    Args:
        path: the file. It need not have this name yet: another process may replace it there at any
            time.
        store: of this machine.
        digest: of its content.
        looks: its fingerprint, from before it was hashed.
    """
    _record(path, store).write({"fingerprint": looks, "digest": digest})


def _record(path: Path, store: Store) -> Record[dict[str, str]]:
    return Record(store.folders.sif_record(path), dict[str, str])
