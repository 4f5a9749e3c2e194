"""The list of the cache's folders, and the prune rule of each."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from builder.core.errors import BuilderError
from builder.core.store.blobs import Store
from builder.core.store.folders import FOLDERS, CacheFolders, PruneRule
from builder.core.store.prune import prune, usage
from tests.support.parts import need_root

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


STRANGER = 12345


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache as builder makes it where all files are writable for the group."""
    before = os.umask(0o002)
    store = Store(tmp_path / "home/.cache/builder")
    store.add(b"blob")
    with store.lock("git x"):
        (store.folders.git / "x").mkdir(parents=True)
    os.umask(before)
    return store.root


def refusal(cache: Path) -> BuilderError:
    with pytest.raises(BuilderError, match="another user owns the cache") as caught:
        CacheFolders(cache)
    return caught.value


def test_made_for_one_user(cache: Path) -> None:
    """Also under a umask and in a folder that give others rights; so are the folders above that are made."""
    assert [path.stat().st_mode & 0o777 for path in (cache, cache.parent)] == [0o700, 0o700]
    shared = cache.parents[2] / "shared"
    shared.mkdir()
    shared.chmod(0o2777)
    # a default ACL with all rights for one more user (acl(5))
    entries = [(1, 7, -1), (2, 7, STRANGER), (4, 7, -1), (16, 7, -1), (32, 7, -1)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(shared, "system.posix_acl_default", data)
    Store(shared / "cache").add(b"blob")
    assert (shared / "cache").stat().st_mode & 0o777 == 0o700
    CacheFolders(shared / "cache")


@pytest.mark.parametrize("line", ["chmod 700 {}", "chmod -R go-w {}", "{hint}"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o2770])
def test_others_may_write(cache: Path, mode: int, line: str) -> None:
    """The cache of an earlier builder, and one in a folder with other rights. The line to type helps."""
    cache.chmod(mode)
    hint = refusal(cache).hint.partition(", or")[0]
    subprocess.run(line.format(cache, hint=hint), shell=True, check=True)
    CacheFolders(cache)


def test_for_everybody(cache: Path) -> None:
    """A folder like /tmp stays as it is: the line to type names one in it."""
    cache.chmod(0o1777)
    own = refusal(cache).hint.partition("export BUILDER_CACHE=")[2]
    assert Path(own).parent == cache and CacheFolders(Path(own)).root == Path(own)


def test_others_may_write_below(cache: Path) -> None:
    """They reach a folder of the cache by one that they can only read."""
    cache.chmod(0o755)
    subprocess.run(refusal(cache).hint.partition(", or")[0], shell=True, check=True)
    CacheFolders(cache)
    cache.chmod(0o755)
    subprocess.run(["chmod", "-R", "go-w", cache], check=True)
    CacheFolders(cache)


@pytest.mark.root
def test_another_owner(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's root owns what it can read, and yet not the cache of the user that is mounted."""
    need_root()
    os.chown(cache, STRANGER, STRANGER)
    own = refusal(cache).hint.partition("export BUILDER_CACHE=")[2]
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    CacheFolders(cache)
    monkeypatch.delenv("SUDO_UID")
    assert Path(own) == cache / "root" and CacheFolders(Path(own)).root == Path(own)
    os.chown(cache, 0, 0)
    cache.chmod(0o755)
    subprocess.run(["chmod", "-R", "go-w", cache], check=True)
    os.chown(cache / "git", STRANGER, STRANGER)
    refusal(cache)
    cache.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(cache)
    CacheFolders(link)
    os.lchown(link, STRANGER, STRANGER)
    refusal(link)


@pytest.mark.root
def test_of_root(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users may read a cache of root's. A volume that all may write to is no cache, but one can be in it."""
    need_root()
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    cache.chmod(0o755)
    subprocess.run(["chmod", "-R", "go-w", cache], check=True)
    CacheFolders(cache)
    cache.chmod(0o777)
    hint = refusal(cache).hint
    assert hint == f"use one of your own: export BUILDER_CACHE={cache}/{STRANGER}"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert refusal(cache).hint.endswith("BUILDER_CACHE=FOLDER")
