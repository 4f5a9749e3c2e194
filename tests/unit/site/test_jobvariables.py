"""Placeholders in the command of a job."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from builder.config.queues import Slurm
from builder.config.site import Launcher, Node, Runtime, Site
from builder.errors import UsageError
from builder.site.jobvariables import JobVariables
from builder.site.plan import plan_job
from builder.site.render import render
from builder.site.request import JobRequest
from builder.site.shell import command_line
from tests.support.image_kit import recipe

AWKWARD = ("a b", "$HOME", "it's", 'say "x"', "`id`", "back\\slash", "{}", "{x}", "{job}", "{jobs.id}", "!")


def variables(launcher: Launcher = "srun", **request: Any) -> JobVariables:
    checkpoints = bool(request.get("checkpoint"))
    return JobVariables(JobRequest(**request), launcher, slurm=True, checkpoints=checkpoints)


def in_bash(words: str, **env: str) -> list[str]:
    """What a program gets as its arguments from this line, with ``set -u``."""
    script = f"set -u; printf '%s\\0' {words}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def test_other_words_stay() -> None:
    assert variables().words(AWKWARD) == AWKWARD


def test_values() -> None:
    """A value is one word, whatever it contains, and is not read as code."""
    words = variables(data="d.tar", checkpoint="c").words(
        (
            "--id={job.id}",
            "{job.data}/{job.rank}",
            "x{env.MINE}$y",
            "{{job.id}",
            "{job.resume}",
            "a{job.id}_b",
        )
    )
    value = """$(touch /tmp/no) "a' b"""
    env = {"BUILDER_JOB_ID": "7", "BUILDER_DATA": "/d d", "SLURM_PROCID": "3", "MINE": value}
    found = in_bash(command_line(words), **env, BUILDER_RESUME="")
    assert found == ["--id=7", "/d d/3", f"x{value}$y", "{job.id}", "", "a7_b"]


def test_variable_that_is_not_set() -> None:
    """The job fails, instead of a path that lacks its beginning."""
    with pytest.raises(subprocess.CalledProcessError):
        in_bash(command_line(variables().words(("{env.NOT_THERE}/data",))))


@pytest.mark.parametrize(
    ("word", "launcher", "message", "hint"),
    [
        ("{job.dta}", "srun", "{job.dta} is not a value of a job", "did you mean {job.data}?"),
        ("{job.x}", "srun", "{job.x} is not a value of a job", "{job.id}, {job.data}"),
        ("{job.data}", "srun", "{job.data}: the job has no such value", "add --data FILE.tar"),
        ("{job.resume}", "srun", "{job.resume}: the job has no such value", "add --checkpoint FOLDER"),
        ("{job.rank}", "torchrun", "{job.rank}: the processes get their ranks after", "in RANK, LOCAL_RANK"),
    ],
)
def test_errors(word: str, launcher: Launcher, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        variables(launcher).words(("x", word))
    assert message in raised.value.message and hint in raised.value.hint


@pytest.mark.parametrize("resume", ["", """/c/it's "1".pt"""])
def test_resume_args(resume: str) -> None:
    """They follow the command only if there is a checkpoint."""
    words = variables(checkpoint="c", resume_args="--load {job.resume} -v").resume_words()
    found = in_bash(f"t.py ${{BUILDER_RESUME:+{command_line(words)}}}", BUILDER_RESUME=resume)
    assert found == (["t.py", "--load", resume, "-v"] if resume else ["t.py"])


def test_invalid_resume_args() -> None:
    with pytest.raises(UsageError, match="--resume-args needs checkpoints"):
        variables(resume_args="--load {job.resume}").resume_words()
    with pytest.raises(UsageError, match="--resume-args: No closing quotation"):
        variables(checkpoint="c", resume_args="--load '").resume_words()


def test_script() -> None:
    """The folder of checkpoints can have the job's id, which all segments of a chain share."""
    site = Site(slurm=Slurm(account="none"), runtime=Runtime(kind="apptainer"), node=Node(cores=4))
    request = JobRequest(
        command=("python", "t.py", "{job.checkpoints}"),
        checkpoint="out/{job.id}",
        resume_args="--load {job.resume}",
        chain=2,
    )
    text = render(plan_job(recipe(site=site), request))
    assert 'export BUILDER_CHECKPOINT_DIR="$SLURM_SUBMIT_DIR/out/$BUILDER_JOB_ID"' in text
    assert "export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" in text
    end = 'python t.py "$BUILDER_CHECKPOINT_DIR" ${BUILDER_RESUME:+--load "$BUILDER_RESUME"}'
    assert end in text
