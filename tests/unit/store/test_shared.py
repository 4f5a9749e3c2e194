"""The blobs that a record names, and the lookup of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.store.blobs import Store
from builder.store.records import write_record
from builder.store.shared import named_blobs

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")


class Shared:
    """A shared cache that has every record."""

    def __init__(self) -> None:
        self.asked: list[list[Path]] = []

    def find(self, records: Sequence[Path]) -> None:
        self.asked.append(list(records))
        for record in records:
            write_record(record, "found")

    def note(self, records: Sequence[Path]) -> None: ...

    def send(self) -> None: ...


def test_named_blobs() -> None:
    value = {
        "layers": [{"digest": A, "diff_id": C}, {"digest": B}, {"digest": A}],
        "wheel": B,
        "title": f'"digest":"{C}"',
        "digest": "sha256:short",
    }
    assert named_blobs(value) == (A, B)
    assert named_blobs(None) == named_blobs([1, "x"]) == ()


def test_recall(tmp_path: Path) -> None:
    """Without a shared cache it reads; with one, that is asked first."""
    store = Store(tmp_path)
    record = store.folders.layers / "x.json"
    assert store.recall(record) is None
    store.shared = shared = Shared()
    assert store.recall(record) == "found"
    store.prefetch([record])
    assert shared.asked == [[record], [record]]
