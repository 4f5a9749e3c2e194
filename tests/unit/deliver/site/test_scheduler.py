"""Slurm's commands, with small stand-ins for sbatch, scontrol and scancel."""

from __future__ import annotations

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
