"""The machine's limit for a set of wheels."""

from __future__ import annotations

from pathlib import Path

from benchmarks.floor import STEPS, floor, total
from benchmarks.synthetic import Package, write_wheels


def test_floor(tmp_path: Path) -> None:
    """It reads only the wheels that it is given, and counts their bytes and files."""
    write_wheels(tmp_path, [Package("made-a", 3, 2, 0), Package("made-b", 3, 2, 0)])
    first, _ = sorted(tmp_path.glob("*.whl"))
    found = floor([first], tmp_path / "scratch")
    assert found["packed"] == first.stat().st_size
    assert found["unpacked"] > found["packed"]
    assert found["files"] == 3 + 2 + 3
    assert total(found) == sum(found[step] for step in STEPS)
    assert not (tmp_path / "scratch").exists()
