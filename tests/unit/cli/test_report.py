"""``builder report``: the page, and the copy to send in."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.reports import a100
from tests.support.smoke_project import SmokeProject


def test_page(project: SmokeProject, tmp_path: Path) -> None:
    """The page and the command report regressions and unreadable reports."""
    project.before(packages={"torch": "2.12.1"})
    project.answers = [a100({"matmul.bf16": 0.85}, started="2026-11-21T08:00:00Z")]
    project("smoke", "gpu")
    (project.root / "reports" / "gpu" / "broken.json").write_text("{")
    out, err = project("report")
    assert "the page: " in out and "broken.json: not JSON" in err
    page = (project.root / "reports" / "index.html").read_text()
    assert "1 slower than usual" in page and "torch 2.12.1 -&gt; 2.13.0" in page and "broken.json" in page
    result = project.json("report", "gpu", "--output", str(tmp_path / "x.html"))
    assert result["targets"]["gpu"] == "pass"
    assert (tmp_path / "x.html").stat().st_size > 10_000


def test_no_reports(project: SmokeProject) -> None:
    """Without reports the command fails; a page of a target without reports is empty."""
    _, err = project("report", code=3)
    assert "no smoke test has been run yet" in err and "builder smoke TARGET" in err
    _, err = project("report", "cpuu", code=3)
    assert "no target named 'cpuu'" in err
    project("report", "gpu", "--output", str(project.root / "x.html"))
    assert "Not tested yet" in (project.root / "x.html").read_text()
    _, err = project("report", "gpu", "--output", str(project.root / "none" / "x.html"), code=2)
    assert "does not exist" in err


def test_share(project: SmokeProject, tmp_path: Path) -> None:
    """``--share`` writes a copy of the newest image's runs without a test."""
    project.before(runs=2)
    project("smoke", "gpu")
    project("smoke", "gpu")
    file = tmp_path / "copy.json"
    for names in ((), ("gpu",), (f"{tmp_path}/reports/gpu",)):
        assert project.json("report", *names, "--share", str(file))["reports"] == 2
        text = file.read_text()
        assert len(json.loads(text)["runs"]) == 2 and "n017" not in text
    one = next((tmp_path / "reports" / "gpu").glob("*.json"))
    _, err = project("report", str(one), "--share", str(file))
    assert f"written for sharing: {file}" in err and "uploads nothing" in err
    assert len(project.asked) == 2 and not (tmp_path / "reports" / "index.html").exists()


def test_share_errors(project: SmokeProject, tmp_path: Path) -> None:
    """A missing folder, several targets and a missing report are errors."""
    _, err = project("report", "--share", str(tmp_path / "none" / "x.json"), code=2)
    assert "does not exist" in err
    file = str(tmp_path / "copy.json")
    assert "x.json: no such report" in project("report", "x.json", "--share", file, code=1)[1]
    assert "gpu has no report" in project("report", "gpu", "--share", file, code=2)[1]
    for name in ("gpu", "other"):
        folder = tmp_path / "reports" / name
        folder.mkdir(parents=True)
        (folder / "x.json").write_text(json.dumps(a100()))
    _, err = project("report", "--share", file, code=2)
    assert "one target, not of gpu, other" in err and f"builder report gpu --share {file}" in err
