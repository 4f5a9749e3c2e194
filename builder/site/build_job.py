"""Builds images on a compute node: ``srun`` runs builder there, with the options of the recipe's site.

Some sites, such as LUMI, do not allow long builds on login nodes. The compute node must have the login node's
file systems, so that project, cache and builder's own Python have the same paths.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builder.config.recipe import Recipe
from builder.errors import RunnerError, UsageError
from builder.progress import QUIET, Reporter, working
from builder.run.process import tail
from builder.site.checks import check_account, check_time
from builder.site.hostsetup import host_setup
from builder.site.job import Resources
from builder.site.limits import check_limits
from builder.site.request import NOTHING_ASKED, SlurmRequest
from builder.site.slurm import Allocation, allocation_options, find_queue
from builder.site.slurmrequest import asked_queue, check_slurm_request, further_options
from builder.site.status import require_current

#: Seconds to wait for the rest of a finished job's messages.
_LAST_MESSAGES_S = 5.0


def build_job(
    recipe: Recipe,
    command: Sequence[str],
    *,
    account: str = "",
    time: str = "",
    asked: SlurmRequest = NOTHING_ASKED,
) -> list[str]:
    """Returns the srun command line that runs ``command`` on a compute node, in the site's queue ``build``.

    Args:
        recipe: the target, whose site has Slurm.
        command: what runs on the node.
        account: the account to charge; empty: none.
        time: the time limit as Slurm writes it; empty: the recipe's.
        asked: options of Slurm in the place of the recipe's.

    Raises:
        UsageError: see :func:`build_options`.
    """
    options = build_options(recipe, account=account, time=time, asked=asked, name=f"builder-{recipe.name}")
    queue = find_queue(recipe.site, "build")
    return ["srun", *options, *queue.srun, *_with_setup(recipe, command)]


def build_options(
    recipe: Recipe, *, account: str, time: str, asked: SlurmRequest, name: str = "builder-build"
) -> list[str]:
    """Returns the options of Slurm for a build in the site's queue ``build``: a node, and no GPUs.

    Args:
        recipe, account, time, asked: see :func:`build_job`.
        name: of the job.

    Raises:
        UsageError: the site has no Slurm or is switched off, its account is missing or has another form, or
            it does not allow the job.
    """
    slurm = recipe.site.slurm
    if slurm is None:
        raise UsageError(
            f"{recipe.source}: site.slurm is not set: target {recipe.name} has no compute nodes to build on",
            "leave --on out, or name the site in the recipe: site: NAME (builder sites list)",
        )
    require_current(recipe)
    check_account(recipe, account)
    check_slurm_request(recipe, asked)
    if time:
        check_time(time)
    queue = asked_queue(slurm, find_queue(recipe.site, "build"), asked)
    allocation = Allocation(
        resources=Resources(nodes=1, gpus=0, tasks=1),
        cpus_per_task=queue.cpus_per_task,
        time=time or queue.time or slurm.time,
        account=account if slurm.account != "none" else "",
        name=name,
        memory=f"--mem={queue.memory}" if queue.memory else "",
    )
    check_limits(recipe, allocation.resources, queue, allocation.time, can_chain=False)
    return [*allocation_options(allocation, queue), *further_options(asked)]


def run_build_job(recipe: Recipe, job: Sequence[str], reporter: Reporter = QUIET) -> dict[str, Any]:
    """Runs a build job and waits for it. On Ctrl-C, srun cancels the job.

    Args:
        recipe: the target.
        job: the command line of :func:`build_job`; it runs ``builder build --json``.
        reporter: receives the messages of the build.

    Returns:
        The JSON result of the build.

    Raises:
        RunnerError: srun is not installed, Slurm rejected the job, or the build failed; the message contains
            the last lines of the output.
    """
    program = shutil.which(job[0])
    if program is None:
        raise RunnerError(
            f"{job[0]} is not installed on this machine",
            "run the command on a login node of the site, or leave --on out",
        )
    shown = ["..." if "\n" in word else word for word in job]
    reporter.note(f"building {recipe.name} on a compute node: {shlex.join(shown)}")
    with working(reporter, f"building {recipe.name} in a job"):
        done = _run([program, *job[1:]], reporter)
    if done.code:
        raise _failure(recipe, done)
    try:
        result = json.loads(done.output)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise RunnerError(
            f"the build job of target {recipe.name} printed no result: {done.output[-300:]!r}",
            "check whether the site's modules or set-up lines print to standard output",
        )
    return result


def _with_setup(recipe: Recipe, command: Sequence[str]) -> list[str]:
    """Returns the command, in a shell if the site's modules and set-up lines must run first."""
    setup = host_setup(recipe.site)
    if not setup:
        return list(command)
    lines = ["set -e", *setup, f"exec {shlex.join(command)}"]
    return ["bash", "-l", "-c", "\n".join(lines)]


@dataclass(frozen=True, slots=True)
class _Finished:
    code: int
    output: str
    messages: list[str]
    """Lines of standard error."""


def _run(command: Sequence[str], reporter: Reporter) -> _Finished:
    """Runs a command and reports its messages. Terminates it on errors and Ctrl-C."""
    messages: list[str] = []
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def collect_messages() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            messages.append(line)
            reporter.note(line.rstrip())

    collector = threading.Thread(target=collect_messages, daemon=True)
    collector.start()
    try:
        assert process.stdout is not None
        output = process.stdout.read()
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    finally:
        collector.join(_LAST_MESSAGES_S)
    return _Finished(code, output, messages)


def _failure(recipe: Recipe, done: _Finished) -> RunnerError:
    """Returns the error of a failed build job: of Slurm, or of the build."""
    from_slurm = [line for line in done.messages if line.startswith(("srun: error", "srun: fatal"))]
    from_build = [line for line in done.messages if line not in from_slurm and "error:" in line]
    if from_slurm and not from_build:
        return RunnerError(
            f"Slurm did not run the build job of target {recipe.name}:\n{tail(from_slurm)}",
            "correct site.slurm.queues.build in the recipe, or pass --account, --partition, --qos or --time",
        )
    return RunnerError(
        f"the build job of target {recipe.name} failed with exit code {done.code}:\n{tail(done.messages)}",
        "the lines above are messages of the build on the compute node",
    )
