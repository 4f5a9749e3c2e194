"""Building on a compute node: ``srun`` runs builder itself there, with the values of the recipe's site.

A login node is no place for a long build (LUMI asks for this). The node shares the file systems with the login node, so the
project, the cache and builder's own Python are where they are here.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from builder.config.recipe import Recipe
from builder.config.site import Queue, Slurm
from builder.errors import RunnerError, UsageError
from builder.progress import QUIET, Reporter
from builder.run.process import tail


def build_job(
    recipe: Recipe, command: Sequence[str], *, account: str | None = None, time: str | None = None
) -> list[str]:
    """The command line that runs ``command`` on a compute node: srun with the options of the site's queue ``build``.

    Args:
        recipe: the target; its ``site.slurm`` says partition, memory, cores and time.
        command: what runs there.
        account: who pays; may also be in the environment (SLURM_ACCOUNT).
        time: instead of the site's.

    Raises:
        UsageError: the site has no Slurm, or needs an account and none was given.
    """
    slurm = recipe.site.slurm
    if slurm is None:
        raise UsageError(
            f"{recipe.source}: site.slurm is not set: target {recipe.name} has no compute nodes to build on",
            "leave --on out, or describe the site's Slurm in the recipe (docs/recipes.md)",
        )
    queue = slurm.queues.get("build") or slurm.queues.get("cpu") or Queue()
    if slurm.account == "required" and not account and not os.environ.get("SLURM_ACCOUNT"):
        example = slurm.account_example or "PROJECT"
        raise UsageError(
            f"{recipe.site.title or recipe.name} needs an account for the build job",
            f"give one: --account {example}",
        )
    return [
        "srun",
        *_options(slurm, queue, account, time),
        f"--job-name=builder-{recipe.name}",
        *_shell(recipe, command),
    ]


def _options(slurm: Slurm, queue: Queue, account: str | None, time: str | None) -> list[str]:
    values = {
        "account": account if slurm.account != "none" else None,
        "partition": queue.partition,
        "qos": queue.qos,
        "constraint": queue.constraint,
        "time": time or queue.time or slurm.time,
        "mem": queue.memory,
        "cpus-per-task": queue.cpus_per_task,
    }
    own = [f"--{name}={value}" for name, value in values.items() if value]
    return ["--nodes=1", "--ntasks=1", *own, *queue.options, *queue.srun]


def _shell(recipe: Recipe, command: Sequence[str]) -> list[str]:
    """The command, after the site's modules and set-up where there are any."""
    site = recipe.site
    if not site.modules and not site.setup:
        return list(command)
    lines = [
        "set -e",
        *(f"module load {shlex.quote(m)}" for m in site.modules),
        *site.setup,
        f"exec {shlex.join(command)}",
    ]
    return ["bash", "-l", "-c", "\n".join(lines)]


def run_build_job(recipe: Recipe, job: Sequence[str], reporter: Reporter = QUIET) -> dict[str, Any]:
    """Runs a build job and waits for it; gives what ``builder build --json`` said there.

    What it says on the way goes to the reporter. On Ctrl-C srun cancels the job.

    Raises:
        RunnerError: there is no srun here, Slurm refused the job, or the build failed; its last lines are in the message.
    """
    tool = shutil.which(job[0])
    if tool is None:
        raise RunnerError(
            f"{job[0]} is not installed here", "run this on a login node of the site, or leave --on out"
        )
    reporter.note(f"building {recipe.name} on a compute node: {shlex.join(_shown(job))}")
    lines: list[str] = []
    process = subprocess.Popen(
        [tool, *job[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            reporter.note(line.rstrip())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        assert process.stdout is not None
        answer = process.stdout.read()
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    finally:
        listener.join(5)
    if code:
        refused = [line for line in lines if line.startswith(("srun: error", "srun: fatal"))]
        if refused and not any("error:" in line for line in lines if line not in refused):
            raise RunnerError(
                f"Slurm did not run the build job of target {recipe.name}:\n{tail(refused)}",
                "correct site.slurm.queues.build in the recipe, or --account and --time",
            )
        raise RunnerError(
            f"the build job of target {recipe.name} failed with exit code {code}:\n{tail(lines)}",
            "the lines above are the build's own, from the compute node",
        )
    try:
        told = json.loads(answer)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise RunnerError(
            f"the build job of target {recipe.name} ended well and said nothing that can be read: {answer[-300:]!r}",
            "look whether the modules or the set-up of the site print to standard output",
        )
    return told


def _shown(job: Sequence[str]) -> list[str]:
    return [word if "\n" not in word else "..." for word in job]
