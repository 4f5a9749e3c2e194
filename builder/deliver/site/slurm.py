"""Slurm: queues, options of sbatch, salloc and srun, and what a job must not inherit."""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Sequence

from builder.core.datafiles import table
from builder.core.errors import UsageError
from builder.core.text import CONTROL
from builder.lock.config.fields import seconds
from builder.lock.config.queues import Queue, QueueName, Slurm
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import NodeHardware, Site, slurm_of

from .job import Resources
from .limits import check_limits, longest_time
from .request import JobRequest, SlurmRequest

log = logging.getLogger(__name__)

#: Signal and seconds before the time limit, so that a segment can write a checkpoint.
_CHAIN_SIGNAL = "TERM@120"
#: By default, the output of a job that Slurm runs again replaces that of the first run.
KEEP_LOG = "--open-mode=append"
#: The account becomes part of a script's comments.
_WORD = re.compile(r"[\w.@+-]+")
#: Options of which Slurm accepts only one.
_MEMORY = frozenset({"mem", "mem-per-gpu", "mem-per-cpu"})


# queues -------------------------------------------------------------------------------------------


def find_queue(site: Site, kind: QueueName) -> Queue:
    """Return the site's queue for a kind of job, or an empty one: then Slurm's defaults apply."""
    queues = slurm_of(site).queues
    for name in table(__file__, "slurm.yaml")["queues"][kind]:
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
    recipe: Recipe, request: JobRequest, resources: Resources, kind: QueueName
) -> list[str]:
    """Return the options that allocate the resources of a job.

    Args:
        recipe: the target, whose site has Slurm.
        request: account and time limit of the job.
        resources: its size.
        kind: of the job.

    Raises:
        UsageError: the site does not allow the job's time or size.
    """
    site = recipe.site
    queue = asked_queue(slurm_of(site), find_queue(site, kind), request.slurm)
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
    can_chain = kind not in ("interactive", "build")
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
    kind = queue_kind(recipe.site.node, resources)
    options = [f"--job-name={request.name or recipe.name}"]
    options += job_options(recipe, request, resources, kind)
    if request.chain:
        options += [f"--signal={_CHAIN_SIGNAL}", f"--array=1-{request.chain}%1"]
    options.append("--output=%x-%A_%a.out" if request.chain else "--output=%x-%j.out")
    options.append(KEEP_LOG)
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


def inherited(options: Sequence[str]) -> str:
    """Return the words for bash's ``unset``: variables that a job may have of another job or step.

    Args:
        options: of sbatch. With the right ones, Slurm sets some of the variables for the job.
    """
    known, given = table(__file__, "inherited.yaml"), {_name(option) for option in options}
    names = [*known["unset"]]
    names += [name for name, own in known["options"].items() if given.isdisjoint(own)]
    words = [f'"${{!{name[:-1]}@}}"' if name.endswith("*") else name for name in names]
    return " \\\n        ".join(textwrap.wrap(" ".join(words), 96, break_on_hyphens=False))


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


# checks ------------------------------------------------------------------------------------------


def check_slurm_request(recipe: Recipe, request: JobRequest) -> None:
    """Check time limit, account and options, as far as that needs no size of the job.

    Raises:
        UsageError: a value has another form, the site has no scheduler, refuses an option, or
            requires an account.
    """
    if request.time:
        try:
            seconds(request.time)
        except ValueError as e:
            hint = "write it as Slurm does: HH:MM:SS, or D-HH:MM"
            raise UsageError(f"--time: {e}", hint) from None
    if request.account and not _WORD.fullmatch(request.account):
        message = f"--account {request.account!r} contains characters that are not allowed"
        raise UsageError(message, "use letters, digits and . _ + - @ only")
    _check_options(recipe, request.slurm)
    if recipe.site.slurm is not None:
        _check_account(recipe, recipe.site.slurm, request.account)


def _check_options(recipe: Recipe, asked: SlurmRequest) -> None:
    """Raise UsageError if the site has no scheduler, or refuses an option."""
    slurm = recipe.site.slurm
    given = [name for name in ("partition", "qos") if getattr(asked, name)]
    given += [_name(option) for option in asked.options]
    for name in given:
        if slurm is None:
            message = f"{recipe.site_title} has no scheduler, which --{name} needs"
            raise UsageError(message, "leave it out")
        if name in slurm.refused:
            hint = slurm.refused[name]
            raise UsageError(f"--{name}: {recipe.site_title} does not accept it", hint)


def _check_account(recipe: Recipe, slurm: Slurm, account: str) -> None:
    """Raise UsageError if the site requires an account, or one of another form."""
    example = slurm.account_example
    if slurm.account == "required" and not account:
        such_as = f", such as {example}" if example else ""
        message = f"jobs on {recipe.site_title} require an account"
        raise UsageError(message, f"pass --account NAME{such_as}")
    if account and not re.fullmatch(slurm.account_form or ".*", account):
        message = f"--account {account}: {recipe.site_title} has no account of this form"
        raise UsageError(message, f"pass one such as {example}" if example else "check its name")


# options of the user, in place of the recipe's ----------------------------------------------------


def read_slurm(options: Sequence[str], *, partition: str = "", qos: str = "") -> SlurmRequest:
    """Read the values of ``--slurm``.

    Args:
        options: each ``--name`` or ``--name=value``.
        partition: the value of ``--partition``; empty: the recipe's.
        qos: the value of ``--qos``; empty: the recipe's.

    Raises:
        UsageError: a value has another form, or is an option that builder writes itself.
    """
    queue, own = {"partition": partition, "qos": qos}, table(__file__, "slurm.yaml")["own_options"]
    raw = []
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not name or CONTROL.search(option):
            message = f"--slurm={option}: not an option of sbatch"
            raise UsageError(message, "write --slurm=--name=value")
        if name in own:
            message = f"--slurm={option}: builder writes this option itself"
            raise UsageError(message, f"pass {own[name]} instead")
        if name in queue:
            queue[name] = value
        else:
            raw.append(option)
    for name, value in queue.items():
        if CONTROL.search(value) or " " in value:
            message = f"--{name} {value!r} is not one word"
            raise UsageError(message, f"pass --{name} NAME as Slurm reads it")
    return SlurmRequest(queue["partition"], queue["qos"], tuple(raw))


def asked_queue(slurm: Slurm, queue: Queue, asked: SlurmRequest) -> Queue:
    """Return a queue with the user's partition and QOS.

    Another partition or QOS than the queue's does not have the queue's times.
    """
    changes: dict[str, object] = {}
    if asked.partition and asked.partition != queue.partition:
        known = slurm.partitions.get(asked.partition)
        changes |= {"partition": asked.partition, "time": "", "max_time": ""}
        if known and known.qos and queue.qos not in known.qos:
            changes["qos"] = ""
    if asked.qos and asked.qos != queue.qos:
        changes |= {"qos": asked.qos, "time": "", "max_time": ""}
    return queue.model_copy(update=changes)


def with_raw_options(options: Sequence[str], asked: SlurmRequest) -> list[str]:
    """Return options of sbatch; the user's replace those of the same name."""
    replaced = {_name(option) for option in asked.options}
    if replaced & _MEMORY:
        replaced |= _MEMORY
    return [*(option for option in options if _name(option) not in replaced), *asked.options]


def _name(option: str) -> str:
    return option.removeprefix("--").partition("=")[0]
