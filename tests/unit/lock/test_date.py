"""The date of a lock: from exclude_newer, or written once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.core.errors import LockError
from builder.core.model import Lock, LockedBase, LockedPackage, LockRecord
from builder.lock.file import dated, read_lock, write_lock
from builder.lock.record import lock_date

FIRST = datetime(2026, 11, 5, tzinfo=UTC)
LATER = datetime(2026, 12, 24, tzinfo=UTC)
URL = "https://me:secret@host.example/linux-64/zlib-1-0.conda"
LOCK = Lock(
    packages=(LockedPackage("zlib", "1", "conda", "linux-64", URL, "a" * 64),),
    platforms=("linux-64",),
    record=LockRecord({"conda": '["zlib"]'}),
    base=LockedBase("debian:bookworm", "sha256:" + "e" * 64),
)


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def test_written_once(tmp_path: Path) -> None:
    """The same packages return the same bytes, whenever they are locked; other packages have a new date."""
    path = tmp_path / "a.t.lock.yml"
    first = write_lock(dated(LOCK, path, FIRST), path)
    raw = path.read_bytes()
    assert lock_date(first.record) == FIRST.timestamp()
    again = write_lock(dated(LOCK, path, LATER), path)
    assert again == first and path.read_bytes() == raw
    other = write_lock(dated(replace(LOCK, packages=()), path, LATER), path)
    assert lock_date(other.record) == LATER.timestamp()
    moved = replace(other, base=LockedBase("debian:bookworm", "sha256:" + "f" * 64))
    assert lock_date(dated(moved, path, FIRST).record) == FIRST.timestamp(), "a new base is a new lock"


def test_exclude_newer(tmp_path: Path) -> None:
    """The date of the sources is the lock's, so two machines that lock write the same bytes."""
    path = tmp_path / "a.t.lock.yml"
    lock = replace(LOCK, record=LockRecord(solved_before="2026-11-02T00:00:00Z", created="old"))
    for now in (FIRST, LATER):
        made = dated(lock, path, now)
        assert made.record.created == "" and lock_date(made.record) == seconds("2026-11-02T00:00:00Z")


@pytest.mark.parametrize("text", ["soon", "1969-01-01T00:00:00Z", "2200-01-01T00:00:00Z"])
def test_invalid(text: str) -> None:
    with pytest.raises(LockError, match=r"builder\.created .* is not a time"):
        lock_date(LockRecord(created=text))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ("time_metadata: {created_at: '2024-03-01T10:00:00Z'}", "2024-03-01T10:00:00Z"),
        ("time_metadata: {created_at: soon}", None),
    ],
)
def test_lock_of_conda_lock(tmp_path: Path, times: str, expected: str | None) -> None:
    """conda-lock writes the time on request (``--metadata time``); without it the lock has no date."""
    path = tmp_path / "conda-lock.yml"
    path.write_text(f"version: 1\nmetadata:\n  platforms: [linux-64]\n  {times}\npackage: []\n")
    assert lock_date(read_lock(path).record) == (expected and seconds(expected))
