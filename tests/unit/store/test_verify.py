"""`builder cache verify`: finds what fingerprints do not show."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

import builder.store.verify
from builder.store.blobs import Store
from builder.store.files import sha256_file
from builder.store.records import read_record, write_record
from builder.store.verify import verify_cache
from tests.support.disk import flip


@pytest.fixture
def store(tmp_path):
    """Two blobs, a record in each folder that has records, and files that are not verified."""
    store = Store(tmp_path / "cache")
    for data in (b"first", b"second"):
        store.add(data)
    for name in ("layers", "bytecode", "wheels", "index", "names", "bases", "smoke", "sif"):
        write_record(store.root / name / "record.json", {"a": 1})
    (store.blobs / ".blob.tmp").write_bytes(b"being written")
    (store.root / "logs").mkdir()
    (store.root / "logs" / "x.json").write_bytes(b"no record")
    return store


def test_nothing_corrupt(store):
    """All blobs and records are hashed; the time of their last use stays."""
    old = time.time() - 86400
    for path in store.root.rglob("*"):
        os.utime(path, (old, old))
    found = verify_cache(store, jobs=2)
    assert (found.files, found.corrupt) == (10, ()) and found.size > len(b"firstsecond")
    assert all(p.stat().st_mtime < old + 1 for p in store.root.rglob("*"))


def test_flipped_bits(store, tmp_path):
    """What is corrupt is removed, with its fingerprint; the rest stays."""
    first, second = store.add(b"first"), store.add(b"second")
    record, sif = store.root / "index" / "record.json", store.root / "sif" / "a.sif"
    sif.write_bytes(b"a SIF")
    digest = sha256_file(sif)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.sif").hardlink_to(sif)
    for path in (store.path(first), record, sif):
        flip(path)
    found = verify_cache(store, [(sif, digest), (tmp_path / "missing", digest)], jobs=2)
    assert {c.path: c.is_linked for c in found.corrupt} == {
        store.path(first): False,
        record: False,
        sif: True,
    }
    assert {c.reason for c in found.corrupt} == {"its content does not match its digest"}
    assert store.get(first) is None and store.get(second) is not None
    assert not store.path(first).with_name(store.path(first).name + ".seen").exists()
    assert read_record(record) is None and read_record(store.root / "layers" / "record.json") == {"a": 1}
    assert verify_cache(store).corrupt == ()


def test_unreadable(store, monkeypatch):
    """A file that the disk cannot read any more is corrupt."""
    path = store.path(store.add(b"first"))

    def read(file: Path) -> str:
        if file == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sha256_file(file)

    monkeypatch.setattr(builder.store.verify, "sha256_file", read)
    (found,) = verify_cache(store).corrupt
    assert found.path == path and found.reason == "it cannot be read: Input/output error"
    assert not path.exists()
