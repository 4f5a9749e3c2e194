"""Records: JSON files that carry their own hash."""

from __future__ import annotations

import pytest

from builder.core.store.records import Record, read_record, write_record
from builder.formats.layers.entry import IndexEntry, PackageIndex


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


INDEX = PackageIndex((IndexEntry("a", "file", 1),), (), ("six",), 3, ("MIT",))


@pytest.mark.parametrize(
    ("shape", "value", "others"),
    [
        (str, "text", [1, ["text"], {}]),
        (tuple[str, ...], ("a", "b"), ["a", [1], {"a": "b"}]),
        (dict[str, str], {"a": "b"}, [[], {"a": 1}]),
        (PackageIndex, INDEX, [[], [[["a", "file", 1, ""]], [], []], {"entries": []}]),
    ],
    ids=["str", "tuple", "dict", "index"],
)
def test_shape(tmp_path, shape, value, others):
    """A value is made once; one of another type, which another version wrote, is made again."""
    record = Record(tmp_path / "r.json", shape)
    assert record.get(lambda: value) == record.get(pytest.fail) == record.read() == value
    for other in others:
        write_record(record.path, other)
        assert record.read() is None
        assert record.get(lambda: value) == record.read() == value
