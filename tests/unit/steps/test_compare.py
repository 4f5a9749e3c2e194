"""What differs between two runs of a step."""

from __future__ import annotations

from pathlib import Path

from builder.steps.compare import compare_layers
from builder.store.blobs import Store
from tests.support.image_kit import layer, member


def test_differences(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = layer(store, member("a", b"1"), member("b", b"12"), member("c", b"x"), member("same", b"s"))
    second = layer(store, member("a", b"2"), member("b", b"1"), member("same", b"s"), member("d", b""))
    found = compare_layers("make", first, second, store)
    assert [(d.path, d.what) for d in found] == [
        ("/a", "content"),
        ("/b", "size, content"),
        ("/c", "only in the first run"),
        ("/d", "only in the second run"),
    ]
    assert compare_layers("make", first, first, store) == []
