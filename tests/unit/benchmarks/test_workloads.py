"""The workloads of a run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.wheels import requirement_of
from benchmarks.workloads import UV, workloads


def test_full(tmp_path: Path) -> None:
    found = {w.name: w for w in workloads(tmp_path, quick=False)}
    assert set(found) == {"small", "conda", "synthetic", "cuda", "torch"}
    assert len(found["synthetic"].wanted) == 300
    # Starts need the image that docker pushed last, and builder's after a bump.
    assert found["torch"].starts and found["torch"].updated and found["torch"].rivals[-1] == UV


def test_quick(tmp_path: Path) -> None:
    """The short run measures each thing once, needs little disk, and has every kind of part."""
    found = workloads(tmp_path, quick=True)
    assert all(w.runs == w.rival_runs == 1 and w.space == 0 for w in found)
    assert any(w.sif and w.apptainer and w.starts and w.updated for w in found)


def test_made(tmp_path: Path) -> None:
    """The made wheels are those that the lock asks for, before and after the bump."""
    made = next(w for w in workloads(tmp_path, quick=True) if w.name == "synthetic")
    assert made.fetch is not None
    made.fetch(made.wheels)
    present = {requirement_of(wheel) for wheel in made.wheels.glob("*.whl")}
    assert present == set(made.wanted) | set(made.updated)
    assert len(set(made.updated) - set(made.wanted)) == 1
