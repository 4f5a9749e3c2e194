"""The list of the cache's folders, and the prune rule of each."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from builder.core.store.blobs import Store
from builder.core.store.folders import FOLDERS, CacheFolders, PruneRule
from builder.core.store.prune import prune, usage

OLD, NEW = "old", "new"


def test_paths(tmp_path):
    """Each of FOLDERS is an attribute of CacheFolders: the path of the folder of this name."""
    for folder in FOLDERS:
        path = getattr(CacheFolders(tmp_path), folder.name)
        assert path.relative_to(tmp_path).parts[0] == folder.name
    assert CacheFolders(tmp_path).blobs == tmp_path / "blobs/sha256"


def folders_with(rule: PruneRule) -> list[str]:
    return [folder.name for folder in FOLDERS if folder.rule is rule]


def write(path: Path, age: str = NEW) -> Path:
    """A file that was last used now (NEW) or 10 days ago (OLD)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")
    then = time.time() - (10 * 86400 if age is OLD else 0)
    os.utime(path, (then, then))
    return path


def test_rule_blobs(tmp_path):
    """A blob is old by its fingerprint, which every use touches, not by the blob's own time."""
    store = Store(tmp_path)
    old, used, new = (store.path(store.add(data)) for data in (b"old", b"used", b"new"))
    for path in (old, old.with_name(old.name + ".seen"), used):
        os.utime(path, (1, 1))
    assert prune(tmp_path, tmp_path / "t", 5, None) > 0
    seen = {used.name + ".seen", new.name + ".seen"}
    assert {p.name for p in store.blobs.iterdir()} == {used.name, new.name} | seen


@pytest.mark.parametrize("folder", folders_with(PruneRule.RECORDS))
def test_rule_records(tmp_path, folder):
    """A record goes with the blob that it names, whatever its own age."""
    store = Store(tmp_path)
    there, gone = store.add(b"there"), store.add(b"gone")
    key = "wheel" if folder == "wheels" else "digest"
    for name, digest in (("there", there), ("gone", gone)):
        record = write(tmp_path / folder / f"{name}.json", OLD)
        record.write_text(f'{{"{key}":"{digest}"}}')
    store.drop(gone)
    prune(tmp_path, tmp_path / "t", 5, None)
    assert [p.name for p in (tmp_path / folder).iterdir()] == ["there.json"]


def test_prune_everything(tmp_path):
    """Without an age everything goes, except lock files and what was published and not read back."""
    for folder in FOLDERS:
        write(tmp_path / folder.name / "file")
    assert prune(tmp_path, tmp_path / "t", None, None) == 5 * (len(FOLDERS) - 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["locks", "unverified"]


def test_usage(tmp_path):
    write(tmp_path / "uv" / "a" / "file")
    write(tmp_path / "blobs" / "file")
    assert [(u.name, u.files, u.size) for u in usage(tmp_path)] == [("blobs", 1, 5), ("uv", 1, 5)]
    assert usage(tmp_path / "missing") == []
