"""``builder report``: the page, and regressions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.reports import a100
from tests.support.smoke_project import SmokeProject


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> SmokeProject:
    made = SmokeProject(tmp_path, monkeypatch, capsys)
    made.answers = [a100(seed=7)]
    return made


def test_page(project: SmokeProject, tmp_path: Path) -> None:
    """The page and the command report regressions and unreadable reports."""
    project.before(packages={"torch": "2.12.1"})
    project.answers = [a100({"matmul.bf16": 0.85}, started="2026-11-21T08:00:00Z")]
    project("smoke", "gpu")
    (project.root / "reports" / "gpu" / "broken.json").write_text("{")
    out, err = project("report")
    assert re.search(r"gpu +pass +2 +2026-11-21 +matmul.bf16\n", out) and "broken.json: not JSON" in err
    page = (project.root / "reports" / "index.html").read_text()
    assert "1 slower than 26.10" in page and "torch 2.12.1 -&gt; 2.13.0" in page and "broken.json" in page
    result = project.json("report", "gpu", "--output", str(tmp_path / "x.html"))
    assert result["targets"]["gpu"] == {"verdict": "pass", "images": 2, "regressions": ["matmul.bf16"]}
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
