"""Slurm's commands: submits, watches and cancels jobs; and the results that jobs write."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from builder.build.run.process import execute
from builder.core.datafiles import table
from builder.core.errors import RunnerError
from builder.core.progress import QUIET, Reporter

log = logging.getLogger(__name__)

#: Seconds between two queries of a job's state.
POLL_S = 2.0
#: Final states of a job.
ENDED = frozenset(table(__file__, "slurm.yaml")["ended"])
#: Looks for the result of a job that has ended, and seconds between two of them: on a shared file
#: system a file may appear late.
_LOOKS, _PAUSE_S = 20, 0.5
#: scontrol fails for a moment while the controller restarts; this many failures in a row are an
#: error.
_FAILURES = 5


def submit(script: str, *, folder: Path | None = None, reporter: Reporter = QUIET) -> str:
    """Submit a batch script with sbatch and return the job's id.

    sbatch gets no options from the environment, neither the user's nor those of a job or step that
    this process is part of.

    Args:
        script: the script.
        folder: the folder that the job starts in; None: the current one.
        reporter: receives the user's options that sbatch does not get.

    Raises:
        RunnerError: sbatch is not installed, or Slurm rejects the job; the message contains Slurm's
            reason.
    """
    command, env = ["sbatch", "--parsable"], _environment(reporter)
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, cwd=folder, env=env
        )
    except OSError as e:
        raise RunnerError(
            f"sbatch cannot be run on this machine: {e.strerror}",
            "write the script with --output FILE, copy it to the site's login node "
            "and run sbatch FILE there",
        ) from None

    job_id = re.search(r"^(\d+)(;|$)", done.stdout, re.MULTILINE)
    if done.returncode or job_id is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines)
        raise RunnerError(
            f"Slurm rejected the job: {errors or f'sbatch ended with {done.returncode}'}",
            "correct what Slurm names: account, queue or size (site.slurm in the recipe); "
            "where no Slurm is configured, write the script with --output FILE "
            "and run sbatch on the site's login node",
        )
    log.info("submitted the job %s", job_id[1])
    return job_id[1]


def _environment(reporter: Reporter) -> dict[str, str]:
    """Return the environment for sbatch, and report the user's settings that are not in it."""
    known = table(__file__, "inherited.yaml")
    of_slurm = {name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))}
    dropped = of_slurm - {*known["passed"]}
    for name in sorted(dropped - {*known["read"]}):
        typed = "options of srun are in the recipe: site.slurm.srun"
        if name.startswith("SBATCH_"):
            option = f"--slurm=--{name[7:].lower().replace('_', '-')}={{value}}"
            typed = "pass " + known["instead"].get(name, option)
        elif "SLURM_JOB_ID" in os.environ:
            continue  # a variable of that job
        value = shlex.quote(os.environ[name])
        reporter.note(f"{name} does not apply to this job: {typed.format(value=value)}")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def wait(number: str, reporter: Reporter = QUIET) -> str:
    """Wait for the end of a job.

    Args:
        number: the job's id.
        reporter: receives each change of the job's state.

    Returns:
        The job's final state; ``UNKNOWN`` if Slurm no longer knows the job.

    Raises:
        RunnerError: Slurm did not answer several times in a row.
    """
    reported, failures, problem = "", 0, ""
    while failures < _FAILURES:
        done = execute(["scontrol", "show", "job", number])
        if done.returncode and "Invalid job id" not in done.stderr:
            failures, problem = failures + 1, done.stderr.strip()
        else:
            failures = 0
            state, reason = _state(done.stdout)
            if state in ENDED or state == "UNKNOWN":
                return state
            if state != reported:
                described = _described(state, reason)
                reporter.note(f"job {number}: {described}")
                reporter.doing(f"job {number}", described)
            reported = state
        time.sleep(POLL_S)
    message = f"Slurm does not answer about job {number}: {problem}"
    raise RunnerError(message, "check the site's Slurm: sinfo")


def _described(state: str, reason: str) -> str:
    is_waiting = state == "PENDING" and reason not in ("", "None")
    return f"{state.lower()} ({reason})" if is_waiting else state.lower()


def cancel(number: str) -> None:
    """Cancel a job with scancel. Errors are ignored: the job may have ended."""
    subprocess.run(["scancel", number], capture_output=True, check=False)


def read_result(path: Path, *, is_sure: bool) -> Any:
    """Return the JSON that a job has written; None: there is none, or it is damaged.

    Args:
        path: the file.
        is_sure: whether the job has surely written one, which may appear late.
    """
    for _ in range(_LOOKS if is_sure else 1):
        with suppress(OSError, ValueError, RecursionError):
            return json.loads(path.read_text("utf-8", "replace"))
        if is_sure:
            time.sleep(_PAUSE_S)
    return None


def _state(shown: str) -> tuple[str, str]:
    """Return state and reason from the output of ``scontrol show job``."""
    found = re.search(r"\bJobState=(\w+)(?: Reason=(\S+))?", shown)
    return (found[1], found[2] or "") if found else ("UNKNOWN", "")
