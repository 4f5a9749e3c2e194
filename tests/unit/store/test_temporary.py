"""Names of temporary files, and the removal of those that killed builds left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from builder.store.blobs import Store
from builder.store.temporary import process_of, remove_left_behind, temporary_name


def test_name_and_parser_agree():
    assert process_of(temporary_name()) == os.getpid() == process_of(temporary_name() + "-suffix")
    assert temporary_name() != temporary_name()


@pytest.mark.parametrize("name", ["something", "blob-", "blob-some-other-host-12-00", "blob-{host}-x-00"])
def test_other_names(name):
    assert process_of(name.format(host=socket.gethostname())) is None


def test_sweep(tmp_path):
    """Only what ended processes of this host left is removed."""
    store = Store(tmp_path / "cache")
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
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / names["dead"]).write_bytes(b"12345")
    assert store.sweep(elsewhere, tmp_path / "missing") >= 10
    assert {p.name for p in store.tmp.iterdir()} == set(names.values()) - {names["dead"]}
    assert list(elsewhere.iterdir()) == [] and remove_left_behind(store.tmp) == 0
