"""Slurm: queues, and options of sbatch, salloc and srun."""

from __future__ import annotations

import logging

from builder.config.fields import seconds
from builder.config.queues import Queue, QueueName
from builder.config.recipe import Recipe
from builder.config.site import NodeHardware, Site, slurm_of
from builder.site.job import Resources
from builder.site.limits import check_limits, longest_time
from builder.site.request import JobRequest
from builder.site.slurmrequest import asked_queue, with_raw_options

log = logging.getLogger(__name__)

#: What a segment of a chain gets before its time limit, so that it can save: signal and seconds.
_CHAIN_SIGNAL = "TERM@120"
#: Queues for each kind of job; the first one that the site has is used.
_QUEUE_FALLBACK: dict[QueueName, tuple[QueueName, ...]] = {
    "nodes": ("nodes", "node", "gpu", "cpu"),
    "node": ("node", "gpu"),
    "gpu": ("gpu", "node"),
    "cpu": ("cpu",),
    "interactive": ("interactive", "gpu", "cpu"),
    "build": ("build", "cpu"),
}


# queues -------------------------------------------------------------------------------------------


def find_queue(site: Site, kind: QueueName) -> Queue:
    """Return the site's queue for a kind of job, or an empty one: then Slurm's defaults apply."""
    queues = slurm_of(site).queues
    for name in _QUEUE_FALLBACK[kind]:
        if name in queues:
            return queues[name]
    return Queue()


def queue_kind(node: NodeHardware, resources: Resources) -> QueueName:
    """Return the kind of queue for a job of this size: more nodes than one count first."""
    if not resources.gpus:
        return "cpu"
    if resources.nodes > 1:
        return "nodes"
    return "node" if resources.gpus == node.gpus else "gpu"


# options ------------------------------------------------------------------------------------------


def job_options(
    recipe: Recipe,
    request: JobRequest,
    resources: Resources,
    queue: Queue,
    *,
    can_chain: bool = True,
) -> list[str]:
    """Return the options that allocate the resources of a job.

    Args:
        recipe: the target, whose site has Slurm.
        request: account and time limit of the job.
        resources: its size.
        queue: the queue that it is for.
        can_chain: whether the job can be split into segments, for the hint.

    Raises:
        UsageError: the site does not allow the job's time or size.
    """
    site = recipe.site
    queue = asked_queue(slurm_of(site), queue, request.slurm)
    values = {
        "account": request.account,
        "partition": queue.partition,
        "qos": queue.qos,
        "constraint": queue.constraint,
        "nodes": resources.nodes,
        "ntasks-per-node": resources.tasks,
        "cpus-per-task": queue.cpus_per_task or _cpus_per_task(site.node, resources),
    }
    options = [f"--{name}={value}" for name, value in values.items() if value]
    if resources.gpus:
        options.append(_fill(queue.gpus or slurm_of(site).gpus, resources))
    if memory := _memory_option(site, queue, resources.gpus):
        options.append(memory)
    time = _time_limit(recipe, request, resources, queue, can_chain=can_chain)
    partition, qos = queue.partition or "of Slurm's default", queue.qos or "none"
    log.info("job of %s: partition %s, QOS %s, %s", recipe.name, partition, qos, time)
    options.append(f"--time={time}")
    return [*options, *(_fill(option, resources) for option in queue.options)]


def directives(recipe: Recipe, request: JobRequest, resources: Resources) -> list[str]:
    """Return the ``#SBATCH`` options of a job.

    Raises:
        UsageError: the site does not allow the job's time or size.
    """
    queue = find_queue(recipe.site, queue_kind(recipe.site.node, resources))
    options = [f"--job-name={request.name or recipe.name}"]
    options += job_options(recipe, request, resources, queue)
    if request.chain:
        options += [f"--signal={_CHAIN_SIGNAL}", f"--array=1-{request.chain}%1"]
    options.append("--output=%x-%A_%a.out" if request.chain else "--output=%x-%j.out")
    return with_raw_options(options, request.slurm)


def srun_options(site: Site, resources: Resources, *, bind_cpus: bool) -> list[str]:
    """Return the options of the srun that starts a job's processes.

    Args:
        site: the site.
        resources: the size of the job.
        bind_cpus: whether there is one process per GPU, which srun can bind to the cores next to
            its GPU.
    """
    node = site.node
    queue = find_queue(site, queue_kind(node, resources))
    uses_whole_node = resources.gpus > 0 and resources.gpus == node.gpus
    options = []
    if bind_cpus and uses_whole_node and node.cpu_bind:
        options.append(f"--cpu-bind={node.cpu_bind}")
    return [*options, *slurm_of(site).srun, *queue.srun]


def _fill(option: str, resources: Resources) -> str:
    """Replace ``{gpus}``, ``{total}`` and ``{nodes}``."""
    total = resources.gpus * resources.nodes
    for name, value in (("gpus", resources.gpus), ("total", total), ("nodes", resources.nodes)):
        option = option.replace(f"{{{name}}}", str(value))
    return option


def _cpus_per_task(node: NodeHardware, resources: Resources) -> int:
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
    number = node.memory_per_gpu.rstrip("bBkKmMgGtT")
    return f"--mem={int(number) * gpus}{node.memory_per_gpu.removeprefix(number)}"


def _time_limit(
    recipe: Recipe, request: JobRequest, resources: Resources, queue: Queue, *, can_chain: bool
) -> str:
    """Return the time limit of a job, which the site allows for its size."""
    slurm = slurm_of(recipe.site)
    default = slurm.segment if request.chain else queue.time or slurm.time
    longest = longest_time(slurm, queue, resources.nodes)
    if longest:
        default = min(default, longest, key=seconds)
    limit = request.time or default
    check_limits(recipe, resources, queue, limit, can_chain=can_chain)
    return limit
