"""Locks between processes of one host and of several, with and without ``flock``."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

import builder.core.store.locks
from builder.core.store.locks import file_lock, writer_lock
from tests.support.other_hosts import CLONE, NO_LOCKS, start_on, without_locks

#: Adds lines to a file as a layout's index is changed: reads all, and writes all under another name.
WRITER = """\
import sys
from pathlib import Path
from builder.core.store.files import write_atomic
from builder.core.store.locks import writer_lock
folder, name = Path(sys.argv[1]), sys.argv[2]
for number in range(20):
    with writer_lock(folder / ".lock"):
        before = (folder / "index").read_bytes()
        write_atomic(folder / "index", before + f"{name} {number}\\n".encode())
"""
#: Holds the lock until it is killed.
HOLDER = """\
import sys, time
from pathlib import Path
from builder.core.store.locks import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("holding", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process sees a file system without locks."""

    def fail(fd: int, operation: int) -> None:
        raise OSError(NO_LOCKS["nfs"], "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)


@pytest.mark.usefixtures("no_flock")
def test_without_locks(tmp_path: Path) -> None:
    """Work that needs no lock goes on; a writer has a file, and removes it."""
    with file_lock(tmp_path / "lock") as is_locked, file_lock(tmp_path / "lock") as again:
        assert not is_locked and not again
    with writer_lock(tmp_path / "lock"):
        assert (tmp_path / "lock.held").read_text().startswith("blob-")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.root
@pytest.mark.parametrize("kind", NO_LOCKS)
def test_eight_hosts(tmp_path: Path, kind: str) -> None:
    """No change is lost, although no file system of the eight hosts has locks."""
    env = without_locks(tmp_path, kind)
    (tmp_path / "index").write_bytes(b"")
    names = [f"node{number}" for number in range(8)]
    running = [start_on(n, [sys.executable, "-c", WRITER, tmp_path, n], env) for n in names]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    lines = (tmp_path / "index").read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {number}" for name in names for number in range(20))
    assert not (tmp_path / ".lock.held").exists()


def test_killed_writer(tmp_path: Path) -> None:
    """The file of a killed process of this host is removed at once."""
    command, env = [sys.executable, "-c", HOLDER, tmp_path / "lock"], without_locks(tmp_path)
    process = subprocess.Popen(command, cwd=CLONE, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "holding\n"
    process.kill()
    process.communicate()
    held = tmp_path / "lock.held"
    assert held.exists()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(builder.core.store.locks, "_flock", lambda fd: False)
        with writer_lock(tmp_path / "lock"):
            assert held.read_text() != ""
    assert not held.exists()


@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize("content", ["", f"blob-{'0' * 16}-1-{'0' * 16}"])
def test_writer_of_another_host(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a process of another host runs is not known: its file is removed after ten minutes."""
    held = tmp_path / "lock.held"
    held.write_text(content)
    waited: list[float] = []
    monkeypatch.setattr("builder.core.store.locks.time.sleep", waited.append)
    monkeypatch.setattr("builder.core.store.locks.time.monotonic", lambda: sum(waited))
    with writer_lock(tmp_path / "lock"):
        assert held.read_text() not in ("", content)
    assert builder.core.store.locks.ABANDONED_S < sum(waited) < builder.core.store.locks.ABANDONED_S + 2
    assert not held.exists()


def test_released_though_a_child_has_the_file_open(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path):
        inherited = [int(fd) for fd in os.listdir("/proc/self/fd") if _names(fd, path)]
        assert len(inherited) == 1
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=inherited)
    try:
        with filelock.FileLock(path, timeout=0):
            pass
    finally:
        child.communicate(b"\n", timeout=120)


def _names(fd: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except OSError:
        return False


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="lock"), file_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "other").exists()
