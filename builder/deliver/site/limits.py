"""Limits of a site's partitions and QOS, and the queues for a job that they refuse."""

from __future__ import annotations

from collections.abc import Iterator

from builder.core.errors import UsageError
from builder.lock.config.fields import seconds
from builder.lock.config.queues import Limits, PartitionLimits, Qos, Queue, Slurm
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import slurm_of

from .job import Resources


def longest_time(slurm: Slurm, queue: Queue, nodes: int) -> str:
    """Return the longest time limit of a job with this many nodes; empty: unknown."""
    times = [queue.max_time, *(_longest(limits, nodes) for _, limits in _limits(slurm, queue))]
    known = [time for time in times if time] or [slurm.max_time]
    return min(known, key=lambda time: seconds(time) if time else 0)


def gpu_counts(slurm: Slurm, queue: Queue) -> list[int]:
    """Return the counts of GPUs per node that a queue allows; empty: any."""
    found = [limits for _, limits in _limits(slurm, queue)]
    partitions = [limits for limits in found if isinstance(limits, PartitionLimits)]
    return sorted({count for partition in partitions for count in partition.gpu_counts})


def check_limits(
    recipe: Recipe, resources: Resources, queue: Queue, time: str, *, can_chain: bool = True
) -> None:
    """Check that the site allows a job.

    Args:
        recipe: the target, whose site has Slurm.
        resources: the size of the job.
        queue: the queue that it is for.
        time: its time limit.
        can_chain: whether the job can be split into segments, for the hint.

    Raises:
        UsageError: partition or QOS are not known, or do not allow the job; the hint names those
            that do.
    """
    slurm = slurm_of(recipe.site)
    _check_names(recipe, slurm, queue)
    for problem in _broken(slurm, resources, queue, time):
        others = alternatives(recipe, resources, time)[:2]
        hints = [f"{_options(other)} allows it" for other in others]
        counts = gpu_counts(slurm, queue)
        hints += [f"--gpus {count}" for count in counts if resources.gpus not in counts]
        if can_chain:
            hints += _segments(slurm, resources, queue, time)
        hint = "; or ".join(hints) or f"no partition of {recipe.site_title} allows it: request less"
        raise UsageError(f"{recipe.site_title}: {problem}", hint)
    if slurm.partitions and not queue.partition and "" not in slurm.partitions:
        raise UsageError(
            f"{recipe.site_title}: site.slurm.queues has no partition for this kind of job",
            f"add a queue with one of its partitions to the recipe: {', '.join(slurm.partitions)}",
        )


def alternatives(recipe: Recipe, resources: Resources, time: str) -> list[Queue]:
    """Return the partitions and QOS of the site that allow a job, in the order of the site file.

    For a job without GPUs those without GPUs come first.
    """
    slurm = slurm_of(recipe.site)
    found = [queue for queue in _queues(slurm) if not _broken(slurm, resources, queue, time)]
    if not resources.gpus:
        unknown = PartitionLimits()
        found.sort(key=lambda queue: slurm.partitions.get(queue.partition, unknown).gpus != 0)
    return found


def _options(queue: Queue) -> str:
    """Return the options of ``builder job`` that choose a partition and a QOS."""
    words = [("--partition", queue.partition), ("--qos", queue.qos)]
    return " ".join(f"{option} {value}" for option, value in words if value) or "no --partition"


def _limits(slurm: Slurm, queue: Queue) -> list[tuple[str, Limits]]:
    """Return the limits of a job in a queue, each with its name for messages."""
    found: list[tuple[str, Limits]] = []
    names = [name for name in queue.partition.split(",") if name in slurm.partitions]
    if len(names) == 1:  # of several partitions Slurm takes the one that allows the job
        name = f"partition {names[0]}" if names[0] else "the default partition"
        found.append((name, slurm.partitions[names[0]]))
    if queue.qos in slurm.qos:
        found.append((f"QOS {queue.qos}", slurm.qos[queue.qos]))
    return found


def _longest(limits: Limits, nodes: int) -> str:
    times = [limits.max_time] if limits.max_time else []
    steps = sorted(limits.time_by_nodes.items())
    times += [time for most, time in steps if nodes <= most][:1]
    if limits.node_minutes:
        times.append(slurm_time(max(limits.node_minutes // nodes, 1)))
    return min(times, key=seconds, default="")


def slurm_time(minutes: int) -> str:
    """Return a time limit in Slurm's notation: ``00:10:00``."""
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


def _check_names(recipe: Recipe, slurm: Slurm, queue: Queue) -> None:
    from builder.lock.config.merge import near_hint

    for option, name, known in slurm.unknown_names(queue):
        site = recipe.site.name or recipe.name
        hint = near_hint(name, known) or f"known: {', '.join(known)}"
        message = f"--{option} {name}: {recipe.site_title} has no such {option}"
        raise UsageError(message, f"{hint} (builder sites show {site} lists them)")


def _broken(slurm: Slurm, resources: Resources, queue: Queue, time: str) -> list[str]:
    """Return sentences about everything in a job that a queue does not allow."""
    limits = _limits(slurm, queue)
    broken = [problem for name, limit in limits for problem in _broken_by(name, limit, resources)]
    broken += [
        f"--time {time}: {name} requires at least {limit.min_time}"
        for name, limit in limits
        if limit.min_time and seconds(time) < seconds(limit.min_time)
    ]
    longest = longest_time(slurm, queue, resources.nodes)
    if longest and seconds(time) > seconds(longest):
        where = " with ".join(name for name, _ in limits) or "the site"
        broken.append(f"--time {time} exceeds the limit of {where} ({longest})")
    return broken


def _broken_by(name: str, limits: Limits, resources: Resources) -> Iterator[str]:
    """Yield sentences about everything but the time that a partition or QOS does not allow."""
    nodes, total = resources.nodes, resources.gpus * resources.nodes
    if limits.max_nodes is not None and nodes > limits.max_nodes:
        yield f"--nodes {nodes}: {name} allows at most {limits.max_nodes}"
    if nodes < limits.min_nodes:
        yield f"--nodes {nodes}: {name} requires at least {limits.min_nodes}"
    if isinstance(limits, PartitionLimits):
        yield from _broken_gpus(name, limits, resources.gpus)
    if isinstance(limits, Qos) and total > (limits.max_gpus or total):
        yield f"{total} GPUs: {name} allows at most {limits.max_gpus}"


def _broken_gpus(name: str, partition: PartitionLimits, gpus: int) -> Iterator[str]:
    if partition.gpus is not None and gpus > partition.gpus:
        has = f"{partition.gpus} GPUs" if partition.gpus else "no GPUs"
        yield f"--gpus {gpus}: the nodes of {name} have {has}"
    if gpus and partition.gpu_counts and gpus not in partition.gpu_counts:
        allowed = " or ".join(str(count) for count in partition.gpu_counts)
        yield f"--gpus {gpus}: {name} allows only {allowed} GPUs per node"


def _segments(slurm: Slurm, resources: Resources, queue: Queue, time: str) -> list[str]:
    """Return the hint to split a job whose time limit is too long."""
    longest = longest_time(slurm, queue, resources.nodes)
    if not longest or seconds(time) <= seconds(longest):
        return []
    segments = -(-seconds(time) // seconds(longest))
    return [f"--time {longest} --chain {segments} splits it into segments that resume"]


def _queues(slurm: Slurm) -> Iterator[Queue]:
    """Yield all pairs of a partition and a QOS; a site may describe only one of the two."""
    for name, partition in slurm.partitions.items() or [("", PartitionLimits())]:
        for qos in partition.qos or tuple(slurm.qos) or ("",):
            yield Queue(partition=name, qos=qos)
