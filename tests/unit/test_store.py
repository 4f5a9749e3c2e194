"""The blob store: what is in it is what its name says, whatever happened to it."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import builder.store.blobs
from builder.errors import BuilderError, SpaceError
from builder.store.blobs import Store, verified
from builder.store.files import require_space, sha256_file, space_errors, write_atomic
from tests.support.disk import small_disk

ROOT = Path(__file__).parents[2]


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

    monkeypatch.setattr(builder.store.blobs, "sha256_file", counting)
    return seen


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_what_is_written_is_found_by_its_digest(store):
    with store.writer() as out:
        assert out.write(b"some ") == 5 and out.write(memoryview(b"bytes")) == 5
        assert out.commit() == (digest(b"some bytes"), 10)
    path = store.get(digest(b"some bytes"))
    assert (
        path == store.root / "blobs/sha256" / digest(b"some bytes")[7:] and path.read_bytes() == b"some bytes"
    )
    assert store.get(digest(b"some bytes"), 10) == path and store.get(digest(b"some bytes"), 11) is None
    assert store.get(digest(b"other")) is None and list(store.tmp.iterdir()) == []
    assert sha256_file(path) == store.add(b"some bytes") == digest(b"some bytes")


def test_a_blob_that_is_not_committed_leaves_nothing(store):
    with pytest.raises(ZeroDivisionError), store.writer() as out:
        out.write(b"half")
        assert len(list(store.tmp.iterdir())) == 1
        1 / 0  # noqa: B018
    assert list(store.tmp.iterdir()) == [] and not store.blobs.exists()


def test_a_blob_is_hashed_again_only_when_it_changed(store, hashed):
    name = store.add(b"content")
    assert store.get(name) and store.get(name) and hashed == []
    path = store.path(name)
    os.utime(path, (1, 1))
    assert store.get(name) == path and hashed == [path]
    assert store.get(name) == path and len(hashed) == 1
    path.with_name(path.name + ".seen").unlink()
    assert store.get(name) == path and len(hashed) == 2


@pytest.mark.parametrize("how", ["longer", "same size", "replaced", "empty"])
def test_a_damaged_blob_is_removed(store, how):
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
def test_a_name_that_is_no_digest_is_refused(store, name):
    with pytest.raises(BuilderError, match="not a sha256 digest"):
        store.path(name)


def test_a_file_outside_is_believed_while_it_looks_the_same(store, tmp_path, hashed):
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(b"wheel")
    name = digest(b"wheel")
    assert (
        not verified(wheel, digest(b"x"), store.seen_file(digest(b"x")))
        and not store.seen_file(digest(b"x")).exists()
    )
    assert (
        verified(wheel, name, store.seen_file(name))
        and verified(wheel, name, store.seen_file(name))
        and len(hashed) == 2
    )
    wheel.write_bytes(b"wheeL")
    assert not verified(wheel, name, store.seen_file(name))
    assert not verified(tmp_path / "none", name, store.seen_file(name))


def test_looking_at_a_blob_counts_as_use(store):
    name = store.add(b"content")
    seen = store.path(name).with_name(store.path(name).name + ".seen")
    os.utime(seen, (1, 1))
    store.get(name)
    assert time.time() - seen.stat().st_mtime < 60


def test_sweep_takes_only_what_dead_processes_of_this_host_left(store):
    store.tmp.mkdir(parents=True)
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    ).stdout.strip()
    names = {
        "dead": f"blob-{socket.gethostname()}-{dead}-00",
        "alive": f"blob-{socket.gethostname()}-{os.getpid()}-00",
        "other host": f"blob-some-other-host-{dead}-00",
        "not ours": "something",
    }
    for name in names.values():
        (store.tmp / name).write_bytes(b"12345")
    folder = store.tmp / f"blob-{socket.gethostname()}-{dead}-folder"
    folder.mkdir()
    (folder / "inside").write_bytes(b"x")
    assert store.sweep() >= 5
    assert {p.name for p in store.tmp.iterdir()} == set(names.values()) - {names["dead"]}


def test_a_killed_writer_leaves_no_blob(store):
    script = (
        "import os, sys; from pathlib import Path; from builder.store.blobs import Store\n"
        "with Store(Path(sys.argv[1])).writer() as out:\n    out.write(b'half'); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(store.root)], cwd=ROOT)
    assert done.returncode == -9 and len(list(store.tmp.iterdir())) == 1 and not store.blobs.exists()
    store.sweep()
    assert list(store.tmp.iterdir()) == []


def test_a_lock_keeps_others_out_threads_and_processes_alike(store):
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
        with store.lock("b"):  # another name is free
            pass
        time.sleep(0.5)
        order.append("first")
        assert process.poll() is None
    thread.join(20)
    assert process.communicate(timeout=20)[0].strip() == b"third" and order == ["first", "second"]


def test_a_lock_of_a_killed_process_is_free(store):
    script = (
        "import os, sys; from pathlib import Path; from builder.store.blobs import Store\n"
        "with Store(Path(sys.argv[1])).lock('a'): os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(store.root)], cwd=ROOT).returncode == -9
    start = time.monotonic()
    with store.lock("a"):
        assert time.monotonic() - start < 5


def test_many_writers_of_the_same_blob(store):
    threads = [
        threading.Thread(target=lambda: [store.add(b"same" * 1000) for _ in range(20)]) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    path = store.get(digest(b"same" * 1000))
    assert path is not None and path.read_bytes() == b"same" * 1000 and list(store.tmp.iterdir()) == []


def test_write_atomic_replaces_whole_files_with_the_mode_given(tmp_path):
    path = tmp_path / "new folder" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two", 0o600)
    assert (
        path.read_bytes() == b"two"
        and path.stat().st_mode & 0o777 == 0o600
        and list(path.parent.iterdir()) == [path]
    )
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "folder", b"cannot replace a folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "new folder"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EROFS, "cannot write"),
        (errno.EACCES, "cannot write"),
    ],
)
def test_the_disks_errors_are_named(tmp_path, number, words):
    with pytest.raises(SpaceError, match=f"{words}.*{tmp_path}") as e, space_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "BUILDER_CACHE" in e.value.hint
    with pytest.raises(OSError, match="Input/output"), space_errors(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_space_is_asked_for_where_the_folder_will_be(tmp_path):
    require_space(tmp_path / "not" / "yet" / "there", 1, "a thing")
    with pytest.raises(SpaceError, match=r"a thing needs about 1000000000\.0 GB in .*/there, .* GB are free"):
        require_space(tmp_path / "not" / "yet" / "there", 10**18, "a thing")


@pytest.mark.root
def test_a_full_disk_while_a_blob_is_written(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        store = Store(disk / "cache")
        with pytest.raises(SpaceError, match=str(disk)), store.writer() as out:
            for _ in range(64):
                out.write(b"\1" * 65536)
            out.commit()
        assert list(store.tmp.iterdir()) == []
        assert store.get(store.add(b"fits again")) is not None
