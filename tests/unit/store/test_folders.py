"""The list of the cache's folders, and the prune rule of each."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from builder.store.blobs import Store
from builder.store.folders import FOLDERS, CacheFolders, PruneRule
from builder.store.prune import prune, usage

OLD, NEW = "old", "new"


def test_attributes_and_list_agree(tmp_path):
    """Each attribute of CacheFolders is in FOLDERS under its own name, and the other way round."""
    attributes = {name for name, value in vars(CacheFolders).items() if isinstance(value, property)}
    assert attributes == {folder.name for folder in FOLDERS} and len(attributes) == len(FOLDERS)
    for name in attributes:
        path = getattr(CacheFolders(tmp_path), name)
        assert path.relative_to(tmp_path).parts[0] == name


def test_blobs_come_before_records():
    """The records of missing blobs are pruned after the blobs."""
    rules = [folder.rule for folder in FOLDERS]
    assert rules.index(PruneRule.BLOBS) < rules.index(PruneRule.RECORDS)


def test_each_folder_says_why():
    assert all(folder.purpose for folder in FOLDERS)


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
    assert prune(tmp_path, 5) > 0
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
    prune(tmp_path, 5)
    assert [p.name for p in (tmp_path / folder).iterdir()] == ["there.json"]


@pytest.mark.parametrize("folder", folders_with(PruneRule.FILES))
def test_rule_files(tmp_path, folder):
    """Each file by its own time, also in folders below."""
    old = [write(tmp_path / folder / "a", OLD), write(tmp_path / folder / "below" / "b", OLD)]
    new = [write(tmp_path / folder / "c"), write(tmp_path / folder / "below" / "d")]
    assert prune(tmp_path, 5) == 10
    assert not any(p.exists() for p in old) and all(p.exists() for p in new)


@pytest.mark.parametrize("folder", folders_with(PruneRule.ENTRIES))
def test_rule_entries(tmp_path, folder):
    """Each entry by its own time: a folder goes or stays as a whole."""
    inside = write(tmp_path / folder / "tree" / "file", OLD)
    old_tree, old_file = tmp_path / folder / "old-tree", write(tmp_path / folder / "old-file", OLD)
    write(old_tree / "file", NEW)
    (old_tree / "closed").mkdir(mode=0o500)
    os.utime(old_tree, (1, 1))
    new_file = write(tmp_path / folder / "new-file")
    prune(tmp_path, 5)
    assert inside.exists() and new_file.exists() and not old_tree.exists() and not old_file.exists()


@pytest.mark.parametrize("folder", folders_with(PruneRule.UV))
def test_rule_uv(tmp_path, folder):
    """uv's cache goes as a whole when it is old, unless uv holds its lock."""
    tag = write(tmp_path / folder / "CACHEDIR.TAG")
    inside = write(tmp_path / folder / "wheels" / "file", OLD)
    prune(tmp_path, 5)
    assert inside.exists()
    write(tag, OLD)
    with (tmp_path / folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prune(tmp_path, 5)
    assert inside.exists() and tag.exists()
    prune(tmp_path, 5)
    assert not inside.exists() and not tag.exists()


@pytest.mark.parametrize("folder", folders_with(PruneRule.NEVER))
def test_rule_never(tmp_path, folder):
    file = write(tmp_path / folder / "file", OLD)
    prune(tmp_path, 5)
    assert file.exists()


def test_every_rule_is_used():
    assert all(folders_with(rule) for rule in PruneRule)


def test_prune_everything(tmp_path):
    """Without an age everything goes, except lock files and what was published and not read back."""
    for folder in FOLDERS:
        write(tmp_path / folder.name / "file")
    assert prune(tmp_path, None) == 5 * (len(FOLDERS) - 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["locks", "unverified"]


def test_usage(tmp_path):
    write(tmp_path / "uv" / "a" / "file")
    write(tmp_path / "blobs" / "file")
    assert [(u.name, u.files, u.size) for u in usage(tmp_path)] == [("blobs", 1, 5), ("uv", 1, 5)]
    assert usage(tmp_path / "missing") == [] and prune(tmp_path / "missing", 1) == 0
