"""Files that appear whole at their place."""

from __future__ import annotations

from pathlib import Path

from builder.store.files import place_file


def test_place_file(tmp_path: Path) -> None:
    """A file appears whole, also over an older one, and leaves no temporary file."""
    source, target = tmp_path / "cache/a.sif", tmp_path / "dist/t.sif"
    source.parent.mkdir()
    source.write_bytes(b"one")
    for text in (b"one", b"one", b"two"):
        if source.read_bytes() != text:
            source.unlink()
            source.write_bytes(text)
        place_file(source, target)
        assert target.read_bytes() == text
    assert [p.name for p in target.parent.iterdir()] == ["t.sif"]
