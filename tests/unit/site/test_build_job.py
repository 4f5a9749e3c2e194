"""Builds on a compute node with srun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.config.recipe import Recipe
from builder.errors import RunnerError, UsageError
from builder.site.build_job import build_job, run_build_job
from builder.site.request import SlurmRequest

SITE: dict[str, Any] = {
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


def recipe(**values: Any) -> Recipe:
    data = {"name": "t", "base": "debian:bookworm", "environment": "t.yml", "site": SITE}
    return Recipe.model_validate({**data, "source": Path("recipes/t.yaml"), **values})


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun gets the values of the site's queue ``build``."""
    job = build_job(recipe(), ["builder", "build", "t"], account="project_1")
    assert job == [
        "srun",
        "--job-name=builder-t",
        "--account=project_1",
        "--partition=debug",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=32",
        "--mem=64G",
        "--time=00:30:00",
        "--exclusive",
        "builder",
        "build",
        "t",
    ]
    assert "--time=1:00" in build_job(recipe(), ["x"], account="p", time="1:00")


def test_modules_and_setup() -> None:
    """A shell loads the modules and runs the set-up lines first."""
    site = {**SITE, "modules": ["LUMI", "cotainr"], "setup": ["export A=1"]}
    job = build_job(recipe(site=site), ["builder", "a b"], account="p")
    assert job[-4:-1] == ["bash", "-l", "-c"]
    assert job[-1] == "set -e\nmodule load LUMI\nmodule load cotainr\nexport A=1\nexec builder 'a b'"


def test_missing_account_and_missing_slurm() -> None:
    with pytest.raises(UsageError, match=r"Site require an account(.|\n)*such as project_465000000"):
        build_job(recipe(), ["x"])
    with pytest.raises(UsageError, match=r"site.slurm is not set: target t has no compute nodes"):
        build_job(recipe(site={}), ["x"])


LIMITED: dict[str, Any] = {
    **SITE,
    "status": "current",
    "slurm": {
        **SITE["slurm"],
        "account_form": r"project_\d{9}",
        "partitions": {"debug": {"max_time": "00:30:00"}, "small": {"max_time": "1-00:00:00"}},
    },
}
ACCOUNT = "project_465000000"


def test_asked() -> None:
    """Options of the user take the place of the recipe's."""
    asked = SlurmRequest(partition="small", qos="high", reservation="course", constraint="cpu")
    job = build_job(recipe(site=LIMITED), ["x"], account=ACCOUNT, time="02:00:00", asked=asked)
    assert {"--partition=small", "--qos=high", "--reservation=course", "--constraint=cpu"} <= set(job)
    assert "--time=02:00:00" in job and "--partition=debug" not in job


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time": "01:00:00"}, r"exceeds the limit of partition debug \(00:30:00\)\n.*--partition small"),
        ({"time": "soon"}, "--time: 'soon' is not a time"),
        ({"account": "me"}, "--account me: Site has no account of this form"),
        ({"asked": SlurmRequest(partition="smal")}, "no such partition\n.*did you mean small"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    """What Slurm would refuse is refused before, with the place that takes it."""
    with pytest.raises(UsageError, match=message):
        build_job(recipe(site=LIMITED), ["x"], **{"account": ACCOUNT, **given})


def test_retired() -> None:
    site = {**SITE, "status": "retired", "retired": "2026-11-21", "successors": ["cirrus"]}
    with pytest.raises(UsageError, match=r"switched off on 2026-11-21.*cirrus"):
        build_job(recipe(site=site), ["x"], account="p")


def test_srun_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError, match=r"srun is not installed on this machine\n.*login node"):
        run_build_job(recipe(), ["srun", "x"])


def run(tmp_path: Path, script: str) -> dict[str, Any]:
    """Runs a build job whose srun is a script."""
    program = tmp_path / "srun"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return run_build_job(recipe(), [str(program), "x"])


def test_result_and_failures(tmp_path: Path) -> None:
    """Failures of Slurm and of the build have different messages."""
    assert run(tmp_path, """echo '{"digest": "d"}'; echo note >&2""") == {"digest": "d"}
    with pytest.raises(RunnerError, match=r"Slurm did not run the build job(.|\n)*Invalid account"):
        run(tmp_path, "echo 'srun: error: Invalid account' >&2; exit 1")
    with pytest.raises(RunnerError, match=r"failed with exit code 7:(.|\n)*error: no space"):
        run(tmp_path, "echo 'error: no space' >&2; echo 'srun: error: task 0: Exited' >&2; exit 7")
    with pytest.raises(RunnerError, match="printed no result: 'Loading module"):
        run(tmp_path, "echo Loading module")
