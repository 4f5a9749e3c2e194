"""Which images passed on this machine, and which report belongs to an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builder.core.store.records import write_record
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport

DIGEST = "sha256:" + "a" * 64


def report(digest: str, verdict: str = "pass", started: str = "2026-11-21T08:00:00Z") -> dict[str, Any]:
    return {"verdict": verdict, "started": started, "image": {"digest": digest, "target": "t"}}


def test_report(tmp_path: Path) -> None:
    """The report of the recorded test counts, if it is of this image and passed."""
    record, file = SmokeRecord(tmp_path / "cache"), tmp_path / "report.json"
    assert record.report(DIGEST) is None
    record.update(SmokeReport("pass", {}, "userns", DIGEST, 0.0, file))
    assert record.report(DIGEST) is None and record.passed(DIGEST) == "pass"
    for other in ("{", "[]", json.dumps(report(DIGEST, "fail")), json.dumps(report("sha256:" + "0" * 64))):
        file.write_text(other)
        assert record.report(DIGEST) is None
    file.write_text(json.dumps(report(DIGEST)))
    assert record.report(DIGEST) == report(DIGEST)


def test_damaged_record(tmp_path: Path) -> None:
    """Only an undamaged record of this image's pass counts."""
    record = SmokeRecord(tmp_path)
    assert record.passed(DIGEST) is None
    record.update(SmokeReport("pass", {}, "userns", DIGEST, 0.0))
    assert record.passed(DIGEST) == "pass"
    path = next((tmp_path / "smoke").iterdir())
    path.write_text(path.read_text()[:-3])
    assert record.passed(DIGEST) is None, "a damaged record is no pass"
    write_record(path, {"digest": "sha256:other", "verdict": "pass"})
    assert record.passed(DIGEST) is None, "another image's pass is no pass"
