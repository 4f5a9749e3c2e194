"""Files that survive a power loss; tests/integration/test_power_loss.py cuts the power."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from builder.core.store.durable import durable_file, sync_files, sync_folder
from builder.core.store.files import write_atomic


@pytest.fixture
def done(monkeypatch):
    """What was synced and renamed, in this order."""
    found: list[str] = []
    real = Path.replace

    def sync(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]
        found.append(f"sync {name.removeprefix('.').split('.blob-')[0]}")

    def rename(path: Path, target: Path) -> Path:
        found.append(f"rename {target.name}")
        return real(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    return found


def test_durable_file(tmp_path, done):
    """The content is on the disk before the file gets its name, and then the name."""
    with durable_file(tmp_path / "new" / "file") as path:
        path.write_bytes(b"content")
    assert done == ["sync file", "rename file", "sync new"]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file"]


def test_write_atomic(tmp_path, done):
    """Files of the cache are not synced, which costs time; others are if the caller says so."""
    write_atomic(tmp_path / "cached", b"x")
    assert done == ["rename cached"]
    done.clear()
    write_atomic(tmp_path / "lock", b"x", durable=True)
    assert done == ["sync lock", "rename lock", f"sync {tmp_path.name}"]


def test_many_files(tmp_path, done):
    """Files come before the folders that they are in."""
    paths = [tmp_path / folder / name for folder in "ab" for name in "cd"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    sync_files(paths)
    assert sorted(done[:4]) == ["sync c", "sync c", "sync d", "sync d"] and done[4:] == ["sync a", "sync b"]


@pytest.mark.parametrize(
    ("number", "is_lost"),
    [(errno.EINVAL, False), (errno.EIO, True), (errno.EROFS, True), (errno.ENOSPC, True)],
)
def test_folders_that_cannot_be_synced(tmp_path, monkeypatch, number, is_lost):
    """A file system that syncs no folders is accepted; lost data is an error."""

    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if not is_lost:
        return sync_folder(tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):
        sync_folder(tmp_path)
    return None
