"""Slurm: queues, options of sbatch, salloc and srun, and submitting, watching and cancelling jobs."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.config.fields import seconds
from builder.config.recipe import Recipe
from builder.config.site import Node, Queue, QueueName, Site, Slurm
from builder.errors import RunnerError, UsageError
from builder.progress import QUIET, Reporter
from builder.site.job import Resources
from builder.site.request import JobRequest

#: Default time limit of one segment of a chain: a day, the most that many sites allow.
SEGMENT_TIME = "24:00:00"
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
#: Queues for each kind of job; the first one that the site has is used.
_QUEUE_FALLBACK: dict[QueueName, tuple[QueueName, ...]] = {
    "nodes": ("nodes", "node", "gpu", "cpu"),
    "node": ("node", "gpu"),
    "gpu": ("gpu", "node"),
    "cpu": ("cpu",),
    "interactive": ("interactive", "gpu", "cpu"),
    "build": ("build", "cpu"),
}
#: scontrol fails for a moment while the controller restarts; this many failures in a row are an error.
_FAILURES = 5
#: Messages of sbatch on a machine whose Slurm is installed, but has no configuration or no controller.
_UNCONFIGURED = re.compile(
    r"resolve_ctls_from_dns_srv|fetch_config|Could not establish a configuration source|"
    r"Unable to (open|stat|contact)|slurm\.conf|[Cc]ontroller .*(refused|respond)"
)


# queues -----------------------------------------------------------------------------------------------------


def slurm_of(site: Site) -> Slurm:
    """Returns the Slurm configuration of a site that has one."""
    assert site.slurm is not None
    return site.slurm


def find_queue(site: Site, kind: QueueName) -> Queue:
    """Returns the site's queue for a kind of job, or an empty one: then Slurm's defaults apply."""
    queues = slurm_of(site).queues
    for name in _QUEUE_FALLBACK[kind]:
        if name in queues:
            return queues[name]
    return Queue()


def queue_kind(node: Node, resources: Resources) -> QueueName:
    """Returns the kind of queue for a job of this size."""
    if not resources.gpus:
        return "cpu"
    if resources.gpus < node.gpus:
        return "gpu"
    return "nodes" if resources.nodes > 1 else "node"


# options ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a job requests from Slurm."""

    resources: Resources
    cpus_per_task: int | None
    """None: Slurm's default."""
    time: str
    """Time limit."""
    account: str = ""
    name: str = ""
    """Job name; empty: Slurm's default."""
    gpus: str = ""
    """The option that requests GPUs; empty: none."""
    memory: str = ""
    """The option that requests memory; empty: Slurm's default."""


def allocation_options(allocation: Allocation, queue: Queue) -> list[str]:
    """Returns the options that sbatch (as ``#SBATCH`` lines), salloc and srun have in common."""
    resources = allocation.resources
    values = {
        "job-name": allocation.name,
        "account": allocation.account,
        "partition": queue.partition,
        "qos": queue.qos,
        "constraint": queue.constraint,
        "nodes": resources.nodes,
        "ntasks-per-node": resources.tasks,
        "cpus-per-task": allocation.cpus_per_task,
    }
    options = [f"--{name}={value}" for name, value in values.items() if value]
    options += [option for option in (allocation.gpus, allocation.memory) if option]
    options.append(f"--time={allocation.time}")
    options += [_fill(option, resources) for option in queue.options]
    return options


def job_options(recipe: Recipe, request: JobRequest, resources: Resources, queue: Queue) -> list[str]:
    """Returns the options that allocate the resources of a job.

    Args:
        recipe: the target, whose site has Slurm.
        request: account and time limit of the job.
        resources: its size.
        queue: the queue that it is for.

    Raises:
        UsageError: the queue does not allow the requested time.
    """
    site = recipe.site
    allocation = Allocation(
        resources=resources,
        cpus_per_task=queue.cpus_per_task or _cpus_per_task(site.node, resources),
        time=_time_limit(recipe, request, queue),
        account=request.account,
        gpus=_fill(queue.gpus or slurm_of(site).gpus, resources) if resources.gpus else "",
        memory=_memory_option(site, queue, resources.gpus),
    )
    return allocation_options(allocation, queue)


def directives(recipe: Recipe, request: JobRequest, resources: Resources) -> list[str]:
    """Returns the ``#SBATCH`` options of a job.

    Raises:
        UsageError: the queue does not allow the requested time.
    """
    queue = find_queue(recipe.site, queue_kind(recipe.site.node, resources))
    options = [f"--job-name={request.name or recipe.name}"]
    options += job_options(recipe, request, resources, queue)
    if request.chain:
        options += [f"--array=1-{request.chain}%1", "--output=%x-%A_%a.out"]
    else:
        options.append("--output=%x-%j.out")
    return options


def srun_options(site: Site, resources: Resources, *, bind_cpus: bool) -> list[str]:
    """Returns the options of the srun that starts a job's processes.

    Args:
        site: the site.
        resources: the size of the job.
        bind_cpus: whether there is one process per GPU, which srun can bind to the cores next to its GPU.
    """
    node = site.node
    queue = find_queue(site, queue_kind(node, resources))
    uses_whole_node = resources.gpus > 0 and resources.gpus == node.gpus
    options = []
    if bind_cpus and uses_whole_node and node.cpu_bind:
        options.append(f"--cpu-bind={node.cpu_bind}")
    return [*options, *slurm_of(site).srun, *queue.srun]


def _fill(option: str, resources: Resources) -> str:
    """Replaces ``{gpus}``, ``{total}`` and ``{nodes}``."""
    total = resources.gpus * resources.nodes
    for name, value in (("gpus", resources.gpus), ("total", total), ("nodes", resources.nodes)):
        option = option.replace(f"{{{name}}}", str(value))
    return option


def _cpus_per_task(node: Node, resources: Resources) -> int:
    if not resources.gpus:
        return max(node.cores // resources.tasks, 1)
    gpus_per_task = max(resources.gpus // resources.tasks, 1)
    return node.gpu_cores * gpus_per_task


def _memory_option(site: Site, queue: Queue, gpus: int) -> str:
    node = site.node
    if queue.memory:
        return f"--mem={queue.memory}"
    if gpus == node.gpus and node.memory:
        return f"--mem={node.memory}"
    if not gpus or not node.memory_per_gpu:
        return ""
    if slurm_of(site).memory_by == "gpu":
        return f"--mem-per-gpu={node.memory_per_gpu}"
    number, unit = re.fullmatch(r"(\d+)(\D*)", node.memory_per_gpu).groups()  # type: ignore[union-attr]  # a Size
    return f"--mem={int(number) * gpus}{unit}"


def _time_limit(recipe: Recipe, request: JobRequest, queue: Queue) -> str:
    slurm = slurm_of(recipe.site)
    longest = queue.max_time or slurm.max_time
    default = queue.time or slurm.time
    if request.chain:
        default = min(SEGMENT_TIME, longest, key=seconds)

    limit = request.time or default
    if seconds(limit) > seconds(longest):
        segments = -(-seconds(limit) // seconds(longest))
        raise UsageError(
            f"--time {limit} exceeds the limit of {recipe.site_title} for this job ({longest})",
            f"split it into segments that resume from the newest checkpoint: "
            f"--time {longest} --chain {segments}",
        )
    return limit


# commands ---------------------------------------------------------------------------------------------------


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
    if _UNCONFIGURED.search(done.stderr):
        raise RunnerError(
            f"Slurm does not answer on this machine: {_reasons(done.stderr)}",
            "on the site's login node try again; elsewhere write the script with --output FILE, copy it to "
            "the site's login node and run sbatch FILE there",
        )
    if done.returncode or job_id is None:
        raise RunnerError(
            f"Slurm rejected the job: {_reasons(done.stderr) or f'sbatch ended with {done.returncode}'}",
            "correct what Slurm names: account, queue or size (site.slurm in the recipe); then submit again",
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
    reported, failures = "", 0
    while True:
        done = _scontrol_show(number)
        if done.returncode and "Invalid job id" in done.stderr:
            return "UNKNOWN"
        if done.returncode:
            failures += 1
            if failures == _FAILURES:
                lines = done.stderr.strip().splitlines() or ["no reason given"]
                raise RunnerError(
                    f"Slurm does not answer about job {number}: {lines[-1]}", "check the site's Slurm: sinfo"
                )
        else:
            failures = 0
            state, reason = _state(done.stdout)
            if state in ENDED or state == "UNKNOWN":
                return state
            if state != reported:
                is_waiting = state == "PENDING" and reason not in ("", "None")
                described = f"{state.lower()}{f' ({reason})' if is_waiting else ''}"
                reporter.note(f"job {number}: {described}")
                reporter.doing(f"job {number}", described)
            reported = state
        sleep(POLL_S)


def cancel(number: str) -> None:
    """Cancels a job with scancel. Errors are ignored: the job may have ended."""
    subprocess.run(["scancel", number], capture_output=True, check=False)


def _scontrol_show(number: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True, check=False)


def _state(shown: str) -> tuple[str, str]:
    """Returns state and reason from the output of ``scontrol show job``."""
    found = re.search(r"\bJobState=(\w+)(?: Reason=(\S+))?", shown)
    return (found[1], found[2] or "") if found else ("UNKNOWN", "")


def _reasons(stderr: str) -> str:
    """Returns the error messages of sbatch in one line."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines)
