"""Slurm's commands: submits, watches and cancels jobs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from builder.errors import RunnerError
from builder.progress import QUIET, Reporter

#: Seconds between two queries of a job's state.
POLL_S = 2.0
#: Final states of a job.
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    }
)
#: scontrol fails for a moment while the controller restarts; this many failures in a row are an error.
_FAILURES = 5


def submit(script: str, *, folder: Path | None = None) -> str:
    """Submits a batch script with sbatch and returns the job's id.

    Args:
        script: the script.
        folder: the folder that the job starts in; None: the current one.

    Raises:
        RunnerError: sbatch is not installed, or Slurm rejects the job; the message contains Slurm's reason.
    """
    command = ["sbatch", "--parsable"]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, cwd=folder, check=False)
    except FileNotFoundError:
        raise RunnerError(
            "sbatch is not installed on this machine",
            "write the script with --output FILE, copy it to the site's login node and run sbatch FILE there",
        ) from None
    except OSError as e:
        raise RunnerError(f"sbatch cannot be run: {e.strerror}", "check the site's Slurm: sinfo") from None

    job_id = re.search(r"^(\d+)(;|$)", done.stdout, re.MULTILINE)
    if done.returncode or job_id is None:
        raise RunnerError(
            f"Slurm rejected the job: {_reasons(done.stderr) or f'sbatch ended with {done.returncode}'}",
            "correct what Slurm names: account, queue or size (site.slurm in the recipe); where no Slurm is "
            "configured, write the script with --output FILE and run sbatch on the site's login node",
        )
    return job_id[1]


def wait(number: str, reporter: Reporter = QUIET, *, sleep: Callable[[float], None] = time.sleep) -> str:
    """Waits for the end of a job.

    Args:
        number: the job's id.
        reporter: receives each change of the job's state.
        sleep: waits between two queries.

    Returns:
        The job's final state; ``UNKNOWN`` if Slurm no longer knows the job.

    Raises:
        RunnerError: Slurm did not answer several times in a row.
    """
    reported = ""
    answers = _answers(number, sleep)
    while True:
        state, reason = _state(next(answers))
        if state in ENDED or state == "UNKNOWN":
            return state
        if state != reported:
            is_waiting = state == "PENDING" and reason not in ("", "None")
            described = f"{state.lower()}{f' ({reason})' if is_waiting else ''}"
            reporter.note(f"job {number}: {described}")
            reporter.doing(f"job {number}", described)
        reported = state


def wait_array(
    number: str,
    count: int,
    ended: Callable[[int, str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits for the end of all tasks of a job array, which are numbered from 0.

    Args:
        number: the array's id.
        count: the number of tasks.
        ended: receives each task that has ended, and its final state; ``UNKNOWN``: Slurm has forgotten it.
        sleep: waits between two queries.

    Raises:
        RunnerError: Slurm did not answer several times in a row.
    """
    running = set(range(count))
    for shown in _answers(number, sleep):
        states = _task_states(shown)
        for task in sorted(running):
            state = states.get(task, "UNKNOWN")
            if state in ENDED or state == "UNKNOWN":
                running.remove(task)
                ended(task, state)
        if not running:
            return


def _answers(number: str, sleep: Callable[[float], None]) -> Iterator[str]:
    """What Slurm says about a job, again and again; nothing of its state if Slurm does not know the job.

    Raises:
        RunnerError: Slurm did not answer several times in a row.
    """
    failures = 0
    while True:
        done = _scontrol_show(number)
        failures = failures + 1 if done.returncode and "Invalid job id" not in done.stderr else 0
        if failures == _FAILURES:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise RunnerError(
                f"Slurm does not answer about job {number}: {lines[-1]}", "check the site's Slurm: sinfo"
            )
        if not failures:
            yield done.stdout
        sleep(POLL_S)


def _task_states(shown: str) -> dict[int, str]:
    """Returns the state of each task from the output of ``scontrol show job``.

    Tasks that wait have one entry, ``ArrayTaskId=2,5-9%4``.
    """
    states: dict[int, str] = {}
    for entry in re.split(r"^(?=JobId=)", shown, flags=re.MULTILINE):
        found = re.search(r"\bArrayTaskId=([\d,-]+)", entry)
        for part in found[1].split(",") if found else ():
            first, _, last = part.partition("-")
            states |= dict.fromkeys(range(int(first), int(last or first) + 1), _state(entry)[0])
    return states


def cancel(number: str) -> None:
    """Cancels a job with scancel. Errors are ignored: the job may have ended."""
    subprocess.run(["scancel", number], capture_output=True, check=False)


def _scontrol_show(number: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SLURM_BITSTR_LEN": "0"}  # else it shows 64 characters of the tasks that wait
    command = ["scontrol", "show", "job", number]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def _state(shown: str) -> tuple[str, str]:
    """Returns state and reason from the output of ``scontrol show job``."""
    found = re.search(r"\bJobState=(\w+)(?: Reason=(\S+))?", shown)
    return (found[1], found[2] or "") if found else ("UNKNOWN", "")


def _reasons(stderr: str) -> str:
    """Returns the error messages of sbatch in one line."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines)
