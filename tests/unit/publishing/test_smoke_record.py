"""Which images passed on this machine, and which report belongs to an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builder.config.recipe import Recipe
from builder.project import Project
from builder.publishing.smoke_record import SmokeRecord, last_report
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import write_record

DIGEST = "sha256:" + "a" * 64
RECIPE = Recipe(name="t", base="oci:b", environment="e.yml", source=Path("recipes/t.yaml"))


def project_in(folder: Path) -> Project:
    settings = Settings.from_environment({"HOME": str(folder)}, cache=folder / "cache")
    return Project(folder, settings, Store(settings.cache))


def report(digest: str, verdict: str = "pass", started: str = "2026-11-21T08:00:00Z") -> dict[str, Any]:
    return {"verdict": verdict, "started": started, "image": {"digest": digest, "target": "t"}}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_last_report(tmp_path: Path) -> None:
    """The last passed report of the very image counts; the recorded one counts first."""
    project = project_in(tmp_path)
    record = SmokeRecord(project.settings.cache)
    folder, short = project.root / "reports/t", DIGEST[7:19]
    assert last_report(project, RECIPE, DIGEST) is None
    record.store(DIGEST, "pass", "userns", folder / "gone.json")
    assert last_report(project, RECIPE, DIGEST) is None and record.passed(DIGEST) == "pass"
    write(folder / f"{short}-20261101T000000Z.json", report(DIGEST, started="old"))
    write(folder / f"{short}-20261102T000000Z.json", report(DIGEST, started="new"))
    write(folder / f"{short}-20261103T000000Z.json", report(DIGEST, "fail"))
    write(folder / f"{short}-20261104T000000Z.json", report("sha256:" + "0" * 64))
    write(folder / f"{short}-20261105T000000Z.json", "{")
    write(folder / f"{short}-20261106T000000Z.json", "[]")
    write(folder / f"{short}-20261107T000000Z.json", {**report(DIGEST), "device_only": True})
    found = last_report(project, RECIPE, DIGEST)
    assert found is not None and found["started"] == "new", "the last that passed, of this very image"
    record.store(DIGEST, "pass", "userns", write(folder / "named.json", report(DIGEST, started="named")))
    found = last_report(project, RECIPE, DIGEST)
    assert found is not None and found["started"] == "named"


def test_damaged_record(tmp_path: Path) -> None:
    """Only an undamaged record of this image's pass counts."""
    record = SmokeRecord(tmp_path)
    assert record.passed(DIGEST) is None
    record.store(DIGEST, "pass", "userns")
    assert record.passed(DIGEST) == "pass"
    path = next((tmp_path / "smoke").iterdir())
    path.write_text(path.read_text()[:-3])
    assert record.passed(DIGEST) is None, "a damaged record is no pass"
    write_record(path, {"digest": "sha256:other", "verdict": "pass"})
    assert record.passed(DIGEST) is None, "another image's pass is no pass"


def test_old_record(tmp_path: Path) -> None:
    """A record of an older builder does not count: the verdict of a job may be that of another image."""
    record = SmokeRecord(tmp_path)
    record.store(DIGEST, "pass", "userns")
    path = next((tmp_path / "smoke").iterdir())
    write_record(path, {"digest": DIGEST, "verdict": "pass", "runner": "slurm (podman-hpc)"})
    assert record.passed(DIGEST) is None
