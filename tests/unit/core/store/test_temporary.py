"""Names of temporary files, and whether the process that made them still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.store.temporary import claimed, temporary_beside, temporary_name, writer_of
from tests.support.parts import part_missing

ROOT = Path(__file__).parents[4]
#: Says a name of its own, waits for a line, and says whether the process with that name runs.
NAME = "from builder.core.store.temporary import *; import os; print(temporary_name(), flush=True)"


@pytest.mark.parametrize("name", ["index.json", "a" * 255, "\udcff" * 255, "é" * 127])
def test_name_beside_a_file(tmp_path, name):
    """The name of any file has a hidden temporary name that the file system accepts."""
    path = temporary_beside(tmp_path / name)
    path.write_bytes(b"")
    assert path.parent == tmp_path and path.name.startswith(".") and writer_of(path.name).is_running() is True


@pytest.mark.root
def test_other_container():
    """The same host name and process number in another pid namespace is another process."""
    enter = ["unshare", "--pid", "--fork"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        part_missing("no pid namespace for this user")
    done = subprocess.run(
        [*enter, sys.executable, "-c", NAME], cwd=ROOT, capture_output=True, text=True, check=True
    )
    writer = writer_of(done.stdout.strip())
    assert writer is not None and writer.is_running() is None


def test_claimed(tmp_path):
    """One process writes to an incomplete file; the next finds what it left."""
    path = tmp_path / "partial" / "file"
    with claimed(path) as first:
        first.write_bytes(b"begun")
        with claimed(path) as second:
            assert second != first and not second.exists()
        assert not path.exists()
    os.utime(path, (1, 1))
    with claimed(path) as third:
        assert third.read_bytes() == b"begun" and not path.exists()
        assert third.stat().st_mtime > 1, "pruning would remove it"
        third.unlink()
    assert list(path.parent.iterdir()) == []


def test_claim_of_a_killed_process(tmp_path):
    """It is taken over in the same place, and that of a process that runs or of another host is not."""
    script = (
        "import os, sys; from builder.core.store.temporary import temporary_name; print(temporary_name())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (tmp_path / f"file.{done.stdout.strip()}").write_bytes(b"left")
    others = [tmp_path / f"file.{name}" for name in (temporary_name(), f"blob-{'0' * 16}-1-{'0' * 16}")]
    for other in others:
        other.write_bytes(b"in use")
    with claimed(tmp_path / "file") as mine:
        assert mine.read_bytes() == b"left"
    assert {p.name for p in tmp_path.iterdir()} == {"file", *(other.name for other in others)}
