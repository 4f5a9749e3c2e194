"""Records: JSON files that carry their own hash."""

from __future__ import annotations

import os
import time

import pytest

from builder.store.records import read_record, write_record


def test_round_trip(tmp_path):
    write_record(tmp_path / "new" / "r.json", {"b": [1, None], "a": "é"})
    assert read_record(tmp_path / "new" / "r.json") == {"a": "é", "b": [1, None]}


@pytest.mark.parametrize("damage", ["missing", "cut", "edited", "empty", "not a record"])
def test_damage(tmp_path, damage):
    """A damaged record counts as missing."""
    path = tmp_path / "r.json"
    write_record(path, {"key": "value"})
    match damage:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-3])
        case "edited":
            path.write_bytes(path.read_bytes().replace(b"value", b"other"))
        case "empty":
            path.write_bytes(b"")
        case "not a record":
            path.write_bytes(b'{"key": "value"}')
    assert read_record(path) is None


def test_use_is_recorded(tmp_path):
    path = tmp_path / "r.json"
    write_record(path, 1)
    os.utime(path, (1, 1))
    assert read_record(path) == 1 and time.time() - path.stat().st_mtime < 60
