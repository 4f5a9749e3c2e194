"""Records: JSON files that carry their own hash."""

from __future__ import annotations

import pytest

from builder.core.store.records import read_record, write_record


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
