"""The removal of the temporary files that killed builds left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.store.blobs import Store
from builder.store.leftovers import ABANDONED_S, remove_left_behind
from builder.store.temporary import temporary_beside, temporary_name, writer_of
from tests.support.parts import part_missing

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def dead() -> str:
    """The process number of a process that has ended."""
    return subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_sweep(tmp_path, dead):
    """Only what ended processes left is removed."""
    store = Store(tmp_path / "cache")
    store.tmp.mkdir(parents=True)
    me = f"-{os.getpid()}-"
    names = {
        "dead": temporary_name().replace(me, f"-{dead}-"),
        "alive": temporary_name(),
        "other host": f"blob-{'0' * 16}-{dead}-{'0' * 16}",
        "not ours": "something",
    }
    for name in names.values():
        (store.tmp / name).write_bytes(b"12345")
    folder = store.tmp / temporary_name("build").replace(me, f"-{dead}-")
    folder.mkdir()
    (folder / "inside").write_bytes(b"x")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / names["dead"]).write_bytes(b"12345")
    hidden = temporary_beside(elsewhere / "index.json")
    hidden.with_name(hidden.name.replace(me, f"-{dead}-")).write_bytes(b"12345")
    assert store.sweep(elsewhere, tmp_path / "missing") >= 15
    assert {p.name for p in store.tmp.iterdir()} == set(names.values()) - {names["dead"]}
    assert list(elsewhere.iterdir()) == [] and remove_left_behind(store.tmp) == 0


def test_abandoned(tmp_path, monkeypatch):
    """The files of other hosts and containers are removed after a week without a change.

    A time from an archive does not make a file old that another host has just unpacked.
    """
    path = tmp_path / f"blob-{'0' * 16}-1-{'a' * 16}"
    path.write_bytes(b"12345")
    os.utime(path, (315532800, 315532800))
    now = time.time()
    for age, removed in ((0, 0), (ABANDONED_S - 60, 0), (ABANDONED_S + 60, 5)):
        monkeypatch.setattr("builder.store.leftovers.time.time", lambda age=age: now + age)
        assert remove_left_behind(tmp_path) == removed
    assert not path.exists()


@pytest.mark.root
def test_container_with_the_same_host_name(tmp_path, dead):
    """A sweep does not remove the file of a build that runs in another pid namespace of this host.

    The build gets the number of a process that has ended here.
    """
    number = f"echo {int(dead) - 1} > /proc/sys/kernel/ns_last_pid"
    enter = ["unshare", "--pid", "--fork", "bash", "-ec", f'{number}; "$@" <&0 & wait $!', "bash"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        part_missing("no pid namespace for this user")
    script = (
        "import sys; from pathlib import Path; from builder.store.blobs import Store\n"
        "with Store(Path(sys.argv[1])).writer() as out:\n"
        "    print('writing', flush=True); sys.stdin.read(); out.write(b'whole'); print(out.commit()[0])\n"
    )
    process = subprocess.Popen(
        [*enter, sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    store = Store(tmp_path)
    assert [writer_of(path.name).pid for path in store.tmp.iterdir()] == [int(dead)]
    assert store.sweep() == 0
    digest = process.communicate(timeout=60)[0].strip()
    assert process.returncode == 0 and store.get(digest) is not None
