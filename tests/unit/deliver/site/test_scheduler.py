"""Slurm's commands, with small stand-ins for sbatch, scontrol and scancel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.core.errors import RunnerError
from builder.deliver.site import scheduler
from builder.deliver.site.scheduler import cancel, submit, wait
from tests.support.reporters import Notes


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins at the front of PATH. Nothing waits for them."""
    monkeypatch.setattr(scheduler, "POLL_S", 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_submit(programs: Path) -> None:
    """sbatch reads the script and prints the job's id, with the cluster's name on federated clusters."""
    program(programs, "sbatch", '[ "$*" = --parsable ] && cat > "$FOLDER/submitted" && echo "812;cluster"')
    assert submit("#!/bin/bash\ntrue\n") == "812"
    assert (programs / "submitted").read_text() == "#!/bin/bash\ntrue\n"


@pytest.mark.parametrize("job", ["", "7"])
def test_environment(job: str, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch gets no options from the environment; the user's own are named, those of a job are not."""
    program(programs, "sbatch", 'cat >/dev/null; env | grep -E "^(SLURM|SBATCH)_" >"$FOLDER/env"; echo 1')
    given = {
        "SBATCH_ACCOUNT": "acc",
        "SBATCH_EXPORT": "NONE",
        "SBATCH_REQUEUE": "1",
        "SBATCH_RESERVATION": "my nodes",
        "SBATCH_TIMELIMIT": "5",
        "SLURM_CONF": "/c",
        "SLURM_CPU_BIND": "none",
        "SLURM_MPI_TYPE": "cray_shasta",
    }
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    for name, value in (given | ({"SLURM_JOB_ID": job} if job else {})).items():
        monkeypatch.setenv(name, value)
    notes = Notes()
    submit("#!/bin/bash\n", reporter=notes)
    passed = (programs / "env").read_text().split()
    assert sorted(passed) == ["SLURM_CONF=/c", "SLURM_MPI_TYPE=cray_shasta"]
    srun = "SLURM_CPU_BIND does not apply to this job: options of srun are in the recipe: site.slurm.srun"
    assert notes.notes == [
        "SBATCH_EXPORT does not apply to this job: pass --slurm=--export=NONE",
        "SBATCH_REQUEUE does not apply to this job: pass --slurm=--requeue",
        "SBATCH_RESERVATION does not apply to this job: pass --slurm=--reservation='my nodes'",
        "SBATCH_TIMELIMIT does not apply to this job: pass --time=5",
        *([] if job else [srun]),
    ]


def test_rejected_job(programs: Path) -> None:
    """The message contains Slurm's reasons."""
    program(
        programs,
        "sbatch",
        "cat >/dev/null\necho 'sbatch: error: invalid account acc' >&2\n"
        "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2\nexit 1",
    )
    with pytest.raises(RunnerError) as caught:
        submit("#!/bin/bash\n")
    assert caught.value.message == (
        "Slurm rejected the job: invalid account acc; Batch job submission failed: Invalid account"
    )


def test_sbatch_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError, match="sbatch cannot be run on this machine: No such file") as caught:
        submit("x")
    assert "copy it to the site's login node" in caught.value.hint


def answers(folder: Path, texts: Sequence[str]) -> None:
    """Creates a scontrol that prints one text after the other; ``!TEXT`` is an error."""
    for number, text in enumerate(texts):
        (folder / f"answer-{number}").write_text(text)
    (folder / "count").write_text("0")
    program(
        folder,
        "scontrol",
        'n=$(cat "$FOLDER/count"); echo $((n + 1)) > "$FOLDER/count"; answer=$(cat "$FOLDER/answer-$n")\n'
        'case $answer in !*) echo "$answer" >&2; exit 1 ;; esac; echo "$answer"',
    )


def test_wait(programs: Path) -> None:
    """Each change of the state is reported once; single failures of scontrol are ignored."""
    pending = "JobId=1 JobState=PENDING Reason=Resources Dependency=(null)"
    states = [pending, pending, "!busy", "JobState=RUNNING Reason=None", "JobState=COMPLETED Reason=None"]
    answers(programs, states)
    reporter = Notes()
    assert wait("1", reporter) == "COMPLETED"
    assert reporter.notes == ["job 1: pending (Resources)", "job 1: running"]


def test_wait_for_a_forgotten_job(programs: Path) -> None:
    answers(programs, ["JobState=RUNNING", "!slurm_load_jobs error: Invalid job id specified"])
    assert wait("1") == "UNKNOWN"


def test_wait_without_answers(programs: Path) -> None:
    """Several failures in a row are an error."""
    answers(programs, ["!Unable to contact slurm controller"] * 5)
    with pytest.raises(RunnerError, match="does not answer about job 1: .*Unable to contact"):
        wait("1")


def test_cancel(programs: Path) -> None:
    """A job that does not exist any more is not an error."""
    program(programs, "scancel", 'echo "$*" > "$FOLDER/cancelled"; exit 1')
    cancel("812")
    assert (programs / "cancelled").read_text() == "812\n"
