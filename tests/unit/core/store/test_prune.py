"""Which parts of a cache are removed so that it has a size."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.core.store.blobs import Store
from builder.core.store.prune import Removal, plan_removal, remove_items, usage
from builder.core.store.records import write_record
from builder.core.store.running import ELSEWHERE_S, mark_running, oldest_running

KB = 1000
NOW = time.time()


class Cache:
    """A cache whose blobs have 10 kB each and were used some hours ago."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(root)

    def blob(self, text: str, hours: float) -> Path:
        digest = self.store.add(text.encode().ljust(10 * KB))
        path = self.store.path(digest)
        for file in (path, path.with_name(path.name + ".seen")):
            self.use(file, hours)
        return path

    def use(self, path: Path, hours: float) -> None:
        os.utime(path, (NOW - hours * 3600,) * 2)

    def file(self, name: str, hours: float, size: int = 10 * KB) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        self.use(path, hours)
        return path

    @property
    def size(self) -> int:
        return sum(folder.size for folder in usage(self.root))

    def limit(self, size: int) -> Removal:
        removal = plan_removal(self.root, size)
        before = self.size
        assert remove_items(self.root, removal) == before - self.size
        return removal


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_least_recently_used_first(cache: Cache) -> None:
    """Reading a blob is a use, whatever the age of its file."""
    blobs = [cache.blob(str(hours), hours) for hours in (50, 40, 30, 20)]
    assert cache.store.get(f"sha256:{blobs[0].name}") == blobs[0]
    sif = cache.file("sif/t.sif", 35)
    removal = cache.limit(31 * KB)
    assert [item.paths[0] for item in removal.items] == [blobs[1], sif]
    assert sum(item.size for item in removal.items) == 20 * KB and cache.size <= 31 * KB
    assert [path.exists() for path in blobs] == [True, False, True, True]
    assert not blobs[1].with_name(blobs[1].name + ".seen").exists()
    assert cache.limit(31 * KB).items == ()


def test_sif_that_is_used(cache: Cache) -> None:
    """Its record has the time of use: the time of the file itself is a part of its fingerprint."""
    sifs = [cache.file(f"sif/{name}.sif", hours) for name, hours in (("used", 50), ("other", 40))]
    write_record(cache.store.folders.sif_record(sifs[0]), {})
    assert [item.paths[0] for item in cache.limit(cache.size - 1).items] == [sifs[1]]


def test_nothing_that_is_linked(cache: Cache, tmp_path: Path) -> None:
    """``dist/`` holds hard links: removing the other name frees nothing. A copy needs no cache."""
    linked, copied = cache.blob("a", 50), cache.blob("b", 40)
    (tmp_path / "dist").hardlink_to(linked)
    sif = cache.file("sif/t.sif", 60)
    (tmp_path / "t.sif").hardlink_to(sif)
    removal = cache.limit(0)
    assert [item.paths[0] for item in removal.items] == [copied]
    assert linked.exists() and sif.exists() and cache.size > 20 * KB


def test_unpacked_images(cache: Cache) -> None:
    """A layer's bytes count where its last image goes, or the layer itself; an image in use stays."""
    uid, rootfs = os.getuid(), cache.root / "rootfs"
    layer = cache.file(f"rootfs/{'a' * 64}-{uid}/0", 10)
    for target, hours in (("used", 30), ("free", 20)):
        image = cache.file(f"rootfs/{target}.{'b' * 24}-{uid}/own", hours).parent
        (image / "shared").hardlink_to(layer)
        cache.use(image, hours)
    cache.use(layer.parent, 10)
    used = os.open(rootfs / f"used.{'b' * 24}-{uid}", os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_SH)
    try:
        removal = cache.limit(0)
        assert [item.size for item in removal.items] == [10 * KB, 10 * KB, 10 * KB]
        assert [item.paths[0].name.split(".")[0] for item in removal.items[:2]] == ["used", "free"]
        assert {path.name.split(".")[0] for path in rootfs.iterdir()} == {"used"}
    finally:
        os.close(used)
    cache.limit(0)
    assert list(rootfs.iterdir()) == []


def test_used_in_the_meantime(cache: Cache) -> None:
    """A command that began after the plan has used the blob."""
    blob, gone = cache.blob("a", 50), cache.blob("b", 50)
    removal = plan_removal(cache.root, 0)
    assert len(removal.items) == 2 and cache.store.get(f"sha256:{blob.name}") == blob
    cache.store.drop(f"sha256:{gone.name}")
    remove_items(cache.root, removal)
    assert blob.exists()


def test_uv(cache: Cache) -> None:
    """uv's cache goes as a whole, unless uv runs now."""
    files = [cache.file(f"uv/{name}", 9) for name in ("CACHEDIR.TAG", "wheels/a", "simple/b")]
    with (cache.root / "uv/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [item.paths[0] for item in cache.limit(0).items] == [cache.root / "uv"]
        assert all(file.exists() for file in files)
    cache.limit(0)
    assert not any(file.exists() for file in files) and plan_removal(cache.root, 0).items == ()


def test_running_command(cache: Cache) -> None:
    """What was used since the oldest running command began stays."""
    old, new = cache.blob("old", 50), cache.blob("new", 1)
    code = "import sys; from pathlib import Path; from builder.core.store.running import mark_running; "
    code += "end = mark_running(Path(sys.argv[1])); print('up', flush=True); sys.stdin.read(); end()"
    command = [sys.executable, "-c", code, str(cache.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "up\n"
        (mark,) = cache.store.folders.locks.glob("*.running")
        cache.use(mark, 2)
        assert [item.paths[0] for item in cache.limit(0).items] == [old]
        other.stdin.close()
    assert other.returncode == 0 and oldest_running(cache.root) is None
    cache.limit(0)
    assert not new.exists()


def test_marks_of_others(cache: Cache) -> None:
    """This process does not count, nor one that was killed, nor one elsewhere after a day."""
    end = mark_running(cache.root)
    assert oldest_running(cache.root) is None
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(cache.root)], check=False)
    assert killed.returncode == -9 and len(list(cache.store.folders.locks.iterdir())) == 2
    assert oldest_running(cache.root) is None and len(list(cache.store.folders.locks.iterdir())) == 1
    elsewhere = cache.store.folders.locks / f"blob-{hashlib.sha256().hexdigest()[:16]}-1-{'0' * 16}.running"
    elsewhere.touch()
    began = oldest_running(cache.root)
    assert began == elsewhere.stat().st_mtime
    assert oldest_running(cache.root, began + ELSEWHERE_S + 1) is None and not elsewhere.exists()
    end()
    assert list(cache.store.folders.locks.iterdir()) == []


_KILLED = """
import os, sys
from pathlib import Path
from builder.core.store.running import mark_running
mark_running(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""
