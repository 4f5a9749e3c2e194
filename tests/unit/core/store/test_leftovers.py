"""The removal of the temporary files that killed builds left."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from builder.core.store.blobs import Store
from builder.core.store.temporary import ABANDONED_S, remove_left_behind, temporary_beside, temporary_name


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
        monkeypatch.setattr("builder.core.store.temporary.time.time", lambda age=age: now + age)
        assert remove_left_behind(tmp_path) == removed
    assert not path.exists()
