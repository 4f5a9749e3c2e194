"""``--share FILE`` of ``builder smoke`` and ``builder report``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.reports import a100
from tests.support.smoke_project import SmokeProject


def test_after_a_test(project: SmokeProject, tmp_path: Path) -> None:
    """``builder smoke --share`` tests, and writes a copy of all runs, of failed ones too."""
    project.answers = [a100({"matmul.bf16": 0.3})]
    file = tmp_path / "copy.json"
    out, err = project("smoke", "gpu", "--repeat", "2", "--share", str(file), code=11)
    assert "smoke test: fail" in out and f"written for sharing: {file}" in err and "uploads nothing" in err
    text = file.read_text()
    assert len(json.loads(text)["runs"]) == 2 and "n017" not in text and "gpu:" not in text
    assert file.stat().st_mode & 0o777 == 0o644


def test_stored_reports(project: SmokeProject, tmp_path: Path) -> None:
    """``builder report --share`` writes a copy of the newest image's runs without a test."""
    project.before(runs=2)
    project("smoke", "gpu", "--repeat", "3")
    asked = len(project.asked)
    file = tmp_path / "copy.json"
    for names in ((), ("gpu",), (f"{tmp_path}/reports/gpu",)):
        result = project.json("report", *names, "--share", str(file))
        assert result["reports"] == 3 and len(json.loads(file.read_text())["runs"]) == 3
    one = next((tmp_path / "reports" / "gpu").glob("*.json"))
    assert project.json("report", str(one), "--share", str(file))["reports"] == 1
    assert len(project.asked) == asked and not (tmp_path / "reports" / "index.html").exists()


def test_errors(project: SmokeProject, tmp_path: Path) -> None:
    """A missing folder ends the command before a test; so do several targets and a missing report."""
    _, err = project("smoke", "gpu", "--share", str(tmp_path / "none" / "x.json"), code=2)
    assert "does not exist" in err and not project.asked
    file = str(tmp_path / "copy.json")
    _, err = project("report", "x.json", "--share", file, code=1)
    assert "x.json: no such report" in err
    _, err = project("report", "gpu", "--share", file, code=2)
    assert "gpu has no report" in err and "builder smoke gpu" in err
    project("smoke", "gpu")
    folder = tmp_path / "reports" / "other"
    folder.mkdir()
    (folder / "x.json").write_text(json.dumps(a100()))
    _, err = project("report", "--share", file, code=2)
    assert "one target, not of gpu, other" in err and f"builder report gpu --share {file}" in err
