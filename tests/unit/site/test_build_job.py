"""Build jobs on a compute node: the srun command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RunnerError, UsageError
from builder.site.build_job import build_job, run_build_job
from tests.support.engines import request

SITE = {
    "title": "Site",
    "launcher": "torchrun",
    "slurm": {
        "account": "required",
        "account_example": "project_465000000",
        "queues": {
            "build": {
                "partition": "debug",
                "memory": "64G",
                "cpus_per_task": 32,
                "time": "00:30:00",
                "options": ["--exclusive"],
            }
        },
    },
}


def test_site_values(tmp_path: Path) -> None:
    job = build_job(request(tmp_path, site=SITE).recipe, ["builder", "build", "t"], account="project_1")
    assert job == [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--account=project_1",
        "--partition=debug",
        "--time=00:30:00",
        "--mem=64G",
        "--cpus-per-task=32",
        "--exclusive",
        "--job-name=builder-t",
        "builder",
        "build",
        "t",
    ]
    assert "--time=1:00" in build_job(request(tmp_path, site=SITE).recipe, ["x"], account="p", time="1:00")


def test_site_modules(tmp_path: Path) -> None:
    site = {**SITE, "modules": ["LUMI", "cotainr"], "setup": ["export A=1"]}
    job = build_job(request(tmp_path, site=site).recipe, ["builder", "a b"], account="p")
    assert job[-4:-1] == ["bash", "-l", "-c"]
    assert job[-1] == "set -e\nmodule load LUMI\nmodule load cotainr\nexport A=1\nexec builder 'a b'"


def test_no_account_or_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_ACCOUNT", raising=False)
    with pytest.raises(UsageError, match=r"Site needs an account(.|\n)*--account project_465000000"):
        build_job(request(tmp_path, site=SITE).recipe, ["x"])
    with pytest.raises(UsageError, match=r"site.slurm is not set: target t has no compute nodes"):
        build_job(request(tmp_path).recipe, ["x"])
    monkeypatch.setenv("SLURM_ACCOUNT", "project_2")
    assert not [w for w in build_job(request(tmp_path, site=SITE).recipe, ["x"]) if w.startswith("--account")]


def test_srun_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError, match=r"srun is not installed here\n.*login node"):
        run_build_job(request(tmp_path, site=SITE).recipe, ["srun", "x"])
