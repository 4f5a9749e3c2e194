"""Raw options of sbatch, with which a user replaces the recipe's."""

from __future__ import annotations

from collections.abc import Sequence

from builder.config.queues import Queue, Slurm
from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.site.request import SlurmRequest
from builder.text import CONTROL

#: Options of sbatch that builder writes itself, and what to pass instead.
_OWN = {
    "nodes": "--nodes",
    "time": "--time",
    "account": "--account",
    "array": "--chain",
    "ntasks": "--gpus or --tasks",
    "ntasks-per-node": "--gpus or --tasks",
}
#: Options of which Slurm accepts only one.
_MEMORY = frozenset({"mem", "mem-per-gpu", "mem-per-cpu"})


def read_slurm(options: Sequence[str], *, partition: str = "", qos: str = "") -> SlurmRequest:
    """Read the values of ``--slurm``.

    Args:
        options: each ``--name`` or ``--name=value``.
        partition: the value of ``--partition``; empty: the recipe's.
        qos: the value of ``--qos``; empty: the recipe's.

    Raises:
        UsageError: a value has another form, or is an option that builder writes itself.
    """
    queue = {"partition": partition, "qos": qos}
    raw = []
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not name or CONTROL.search(option):
            message = f"--slurm={option}: not an option of sbatch"
            raise UsageError(message, "write --slurm=--name=value")
        if name in _OWN:
            message = f"--slurm={option}: builder writes this option itself"
            raise UsageError(message, f"pass {_OWN[name]} instead")
        if name in queue:
            queue[name] = value
        else:
            raw.append(option)
    for name, value in queue.items():
        if CONTROL.search(value) or " " in value:
            message = f"--{name} {value!r} is not one word"
            raise UsageError(message, f"pass --{name} NAME as Slurm reads it")
    return SlurmRequest(queue["partition"], queue["qos"], tuple(raw))


def check_slurm_request(recipe: Recipe, asked: SlurmRequest) -> None:
    """Check whether the site accepts the options.

    Raises:
        UsageError: the site has no scheduler, or refuses an option.
    """
    slurm = recipe.site.slurm
    given = [name for name in ("partition", "qos") if getattr(asked, name)]
    given += [_name(option) for option in asked.options]
    if slurm is None and given:
        message = f"{recipe.site_title} has no scheduler, which --{given[0]} needs"
        raise UsageError(message, "leave it out")
    for name in given:
        if slurm is not None and name in slurm.refused:
            hint = slurm.refused[name]
            raise UsageError(f"--{name}: {recipe.site_title} does not accept it", hint)


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
