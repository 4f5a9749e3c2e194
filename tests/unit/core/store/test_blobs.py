"""The blob store: what is in it matches its digest, whatever happened to the files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import builder.core.store.blobs
import builder.core.store.fingerprints
from builder.core.errors import ImageError, SpaceError
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file, write_atomic
from tests.support.disk import flip, small_disk

ROOT = Path(__file__).parents[4]


@pytest.fixture
def hashed(monkeypatch):
    """The files that were hashed again."""
    seen: list[Path] = []

    def counting(path: Path) -> str:
        seen.append(path)
        return sha256_file(path)

    monkeypatch.setattr(builder.core.store.fingerprints, "sha256_file", counting)
    return seen


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_write_and_get(store):
    """A blob that was written is found by its digest."""
    with store.writer() as out:
        assert out.write(b"some ") == 5 and out.write(memoryview(b"bytes")) == 5
        assert out.commit() == (digest(b"some bytes"), 10)
    path = store.get(digest(b"some bytes"))
    assert path == store.root / "blobs/sha256" / digest(b"some bytes")[7:]
    assert path.read_bytes() == b"some bytes"
    assert store.get(digest(b"some bytes"), 10) == path and store.get(digest(b"some bytes"), 11) is None
    assert store.get(digest(b"other")) is None and list(store.tmp.iterdir()) == []
    assert sha256_file(path) == store.add(b"some bytes") == digest(b"some bytes")


def test_hashed_only_after_a_change(store, hashed):
    """A blob is hashed again only when it looks different or has no fingerprint."""
    name = store.add(b"content")
    assert store.get(name) and store.get(name) and hashed == []
    path = store.path(name)
    os.utime(path, (1, 1))
    assert store.get(name) == path and hashed == [path]
    assert store.get(name) == path and len(hashed) == 1
    path.with_name(path.name + ".seen").unlink()
    assert store.get(name) == path and len(hashed) == 2


@pytest.mark.parametrize("content", [b"H\xa5\xf3d\0\0", b""])
def test_damaged_fingerprint(store, hashed, content):
    """Fingerprint files are not synced: after a power loss they hold anything. The blob is hashed again."""
    name = store.add(b"content")
    path = store.path(name)
    path.with_name(path.name + ".seen").write_bytes(content)
    assert store.get(name) == path and hashed == [path]
    assert store.get(name) == path and len(hashed) == 1


@pytest.mark.parametrize("how", ["longer", "same size", "replaced", "empty"])
def test_damaged_blob_is_removed(store, how):
    path = store.path(store.add(b"content"))
    match how:
        case "longer":
            path.write_bytes(b"content!")
        case "same size":
            path.write_bytes(b"cOntent")
        case "replaced":
            write_atomic(path, b"another")
        case "empty":
            path.write_bytes(b"")
    assert store.get(digest(b"content")) is None and not path.exists()
    assert store.add(b"content") == digest(b"content") and store.get(digest(b"content")) == path


def test_verify(store, tmp_path, hashed):
    """``verify`` works for blobs and for files outside; each place has its own fingerprint."""
    name = store.add(b"content")
    assert store.verify(store.path(name), name) and hashed == []
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"content")
    two.write_bytes(b"content")
    store.mark_verified(one, name)
    assert store.verify(one, name) and hashed == []
    assert store.verify(two, name) and store.verify(two, name) and hashed == [two]
    one.write_bytes(b"another")
    assert not store.verify(one, name) and store.verify(two, name)


def test_killed_writer(store):
    """A killed writer leaves no blob, and the next sweep removes its temporary file."""
    script = (
        "import os, sys; from pathlib import Path; from builder.core.store.blobs import Store\n"
        "with Store(Path(sys.argv[1])).writer() as out:\n    out.write(b'half'); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(store.root)], cwd=ROOT)
    assert done.returncode == -9 and len(list(store.tmp.iterdir())) == 1 and not store.blobs.exists()
    store.sweep()
    assert list(store.tmp.iterdir()) == []


def test_lock_excludes_others(store):
    """A lock excludes other threads and other processes; another name is another lock."""
    order: list[str] = []

    def hold() -> None:
        with store.lock("a"):
            order.append("second")

    with store.lock("a"):
        thread = threading.Thread(target=hold)
        thread.start()
        script = (
            "import sys; from pathlib import Path; from builder.core.store.blobs import Store\n"
            "with Store(Path(sys.argv[1])).lock('a'): print('third')\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(store.root)], cwd=ROOT, stdout=subprocess.PIPE
        )
        with store.lock("b"):
            pass
        time.sleep(0.5)
        order.append("first")
        assert process.poll() is None
    thread.join(120)
    assert process.communicate(timeout=120)[0].strip() == b"third" and order == ["first", "second"]


@pytest.mark.root
def test_full_disk(tmp_path):
    """A full disk while a blob is written is a SpaceError, and nothing is left."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        store = Store(disk / "cache")
        with pytest.raises(SpaceError, match=str(disk)), store.writer() as out:
            for _ in range(64):
                out.write(b"\1" * 65536)
            out.commit()
        assert list(store.tmp.iterdir()) == []
        assert store.get(store.add(b"fits again")) is not None


# several processes at once ----------------------------------------------------------------------------------


def test_blob_that_appears_meanwhile(store, monkeypatch):
    """A blob that another process adds while this one looks for it stays."""
    real = builder.core.store.fingerprints.fingerprint

    def look(path: Path) -> str:
        try:
            return real(path)
        except FileNotFoundError:
            monkeypatch.undo()
            Store(store.root).add(b"content")
            raise

    monkeypatch.setattr(builder.core.store.fingerprints, "fingerprint", look)
    store.get(digest(b"content"))
    assert store.get(digest(b"content")) == store.path(digest(b"content"))


def test_processes_share_a_store(store):
    """Processes that get or add the same blobs at the same time delete none of them."""
    script = (
        "import hashlib, sys; from pathlib import Path; from builder.core.store.blobs import Store\n"
        "store = Store(Path(sys.argv[1])); added = 0; sys.stdin.readline()\n"
        "for number in range(400):\n"
        "    data = str(number).encode(); name = 'sha256:' + hashlib.sha256(data).hexdigest()\n"
        "    if store.get(name) is None: store.add(data); added += 1\n"
        "    assert store.get(name), number\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(store.root)], cwd=ROOT, stdin=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in processes:  # all have been started
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    assert len([p for p in store.blobs.iterdir() if not p.suffix]) == 400


# flipped bits -----------------------------------------------------------------------------------------------


def test_rehash(store, tmp_path):
    """A bit that flips without a trace is found by a store that has not hashed the file itself."""
    path = store.path(store.add(b"content"))
    assert store.rehash(path, digest(b"content")) and not store.rehash(path, digest(b"other"))
    flip(path)
    later = Store(store.root)
    assert later.get(digest(b"content")) == path, "the fingerprint is the same"
    assert not later.rehash(path, digest(b"content"))
    with pytest.raises(FileNotFoundError):
        later.rehash(tmp_path / "missing", digest(b"content"))


@pytest.mark.parametrize("how", ["link", "copy"])
def test_place(store, tmp_path, monkeypatch, how):
    """A file is placed whole, also over an older one, and leaves no temporary file."""
    if how == "copy":
        monkeypatch.setattr(os, "link", no_links)
    target = tmp_path / "new" / "target"
    for data in (b"one", b"two"):
        source = store.path(store.add(data))
        source.chmod(0o755)
        store.place(source, target, digest(data))
        assert target.read_bytes() == data and target.stat().st_mode & 0o777 == 0o755
        assert source.samefile(target) == (how == "link")
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("how", ["link", "copy"])
def test_place_corrupt_file(store, tmp_path, monkeypatch, how):
    """A corrupt file is not placed. One of the cache is removed, so that the next run makes it again."""
    if how == "copy":
        monkeypatch.setattr(os, "link", no_links)
    path = store.path(store.add(b"content"))
    flip(path)
    later = Store(store.root)
    with pytest.raises(ImageError, match="is corrupt") as e:
        later.place(path, tmp_path / "target", digest(b"content"))
    assert "run the command again" in e.value.hint
    assert not path.exists() and not (tmp_path / "target").exists()
    with pytest.raises(ImageError, match="is missing"):
        later.place(path, tmp_path / "target", digest(b"content"))


@pytest.mark.parametrize("how", ["link", "copy"])
def test_place_corrupt_file_of_another_folder(store, tmp_path, monkeypatch, how):
    """A corrupt file that is not of the cache is not placed either, and not removed."""
    if how == "copy":
        monkeypatch.setattr(os, "link", no_links)
    outside = tmp_path / "outside"
    outside.write_bytes(b"damaged")
    with pytest.raises(ImageError, match="is corrupt"):
        store.place(outside, tmp_path / "target", digest(b"content"))
    assert outside.exists() and not (tmp_path / "target").exists()


def no_links(*args: object, **more: object) -> None:
    raise OSError(18, "Invalid cross-device link")
