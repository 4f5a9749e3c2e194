"""``builder report``: the page, and regressions."""

from __future__ import annotations

import re
from pathlib import Path

from builder.smoke.reports import store_report
from tests.support.reports import A100_40, a100, ranked, report
from tests.support.smoke_project import SmokeProject


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


def test_slower_on_all_gpus(project: SmokeProject) -> None:
    """A figure that is slower on two GPUs is named once."""
    for medians in ((248e3, 246e3), (210e3, 208e3)):
        old = medians[0] > 240e3
        made = report(
            [ranked("matmul.bf16", medians)],
            devices=[{**A100_40, "rank": n} for n in range(2)],
            ranks=2,
            digest="sha256:" + ("1" if old else "2") * 64,
            started=f"2026-{10 if old else 11}-05T06:00:00Z",
        )
        store_report(made, project.root / "reports" / "gpu")
    assert project.json("report", "gpu")["targets"]["gpu"]["regressions"] == ["matmul.bf16"]
