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

import builder.store.fingerprints
from builder.errors import BuilderError, SpaceError
from builder.store.blobs import Store
from builder.store.files import sha256_file, write_atomic
from builder.store.fingerprints import verified
from tests.support.disk import small_disk

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def hashed(monkeypatch):
    """The files that were hashed again."""
    seen: list[Path] = []

    def counting(path: Path) -> str:
        seen.append(path)
        return sha256_file(path)

    monkeypatch.setattr(builder.store.fingerprints, "sha256_file", counting)
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


def test_without_commit(store):
    """A blob that is not committed leaves nothing."""
    with pytest.raises(ZeroDivisionError), store.writer() as out:
        out.write(b"half")
        assert len(list(store.tmp.iterdir())) == 1
        1 / 0  # noqa: B018
    assert list(store.tmp.iterdir()) == [] and not store.blobs.exists()


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


def test_drop_and_adopt(store, tmp_path):
    file = tmp_path / "cache" / "made elsewhere"
    file.parent.mkdir()
    file.write_bytes(b"adopted")
    assert store.adopt(file, digest(b"adopted")) == store.get(digest(b"adopted")) and not file.exists()
    store.drop(digest(b"adopted"))
    store.drop(digest(b"adopted"))
    assert store.get(digest(b"adopted")) is None and list(store.blobs.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["sha256:abc", "md5:" + "0" * 64, "sha256:" + "A" * 64, "sha256:../../" + "0" * 58, "0" * 64, ""]
)
def test_not_a_digest(store, name):
    with pytest.raises(BuilderError, match="not a sha256 digest"):
        store.path(name)


def test_file_outside_the_store(store, tmp_path, hashed):
    """A file outside is hashed once and then trusted while it looks the same."""
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(b"wheel")
    name = digest(b"wheel")
    assert not verified(wheel, digest(b"x"), store.seen_file(digest(b"x")))
    assert not store.seen_file(digest(b"x")).exists()
    assert verified(wheel, name, store.seen_file(name)) and verified(wheel, name, store.seen_file(name))
    assert len(hashed) == 2
    wheel.write_bytes(b"wheeL")
    assert not verified(wheel, name, store.seen_file(name))
    assert not verified(tmp_path / "none", name, store.seen_file(name))


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


def test_use_is_recorded(store):
    """Getting a blob sets the time of its last use."""
    name = store.add(b"content")
    seen = store.path(name).with_name(store.path(name).name + ".seen")
    os.utime(seen, (1, 1))
    store.get(name)
    assert time.time() - seen.stat().st_mtime < 60


def test_killed_writer(store):
    """A killed writer leaves no blob, and the next sweep removes its temporary file."""
    script = (
        "import os, sys; from pathlib import Path; from builder.store.blobs import Store\n"
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
            "import sys; from pathlib import Path; from builder.store.blobs import Store\n"
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
    thread.join(20)
    assert process.communicate(timeout=20)[0].strip() == b"third" and order == ["first", "second"]


def test_lock_of_a_killed_process(store):
    """The lock of a killed process is free."""
    script = (
        "import os, sys; from pathlib import Path; from builder.store.blobs import Store\n"
        "with Store(Path(sys.argv[1])).lock('a'): os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(store.root)], cwd=ROOT).returncode == -9
    start = time.monotonic()
    with store.lock("a"):
        assert time.monotonic() - start < 5


def test_many_writers_of_one_blob(store):
    threads = [
        threading.Thread(target=lambda: [store.add(b"same" * 1000) for _ in range(20)]) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    path = store.get(digest(b"same" * 1000))
    assert path is not None and path.read_bytes() == b"same" * 1000 and list(store.tmp.iterdir()) == []


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
