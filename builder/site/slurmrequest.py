"""Options of Slurm that a user passes in the place of the recipe's: their form, and what the site accepts."""

from __future__ import annotations

import re
from dataclasses import fields

from pydantic import TypeAdapter, ValidationError

from builder.config.fields import Size
from builder.config.queues import Queue, Slurm
from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.site.arguments import split_words
from builder.site.request import SlurmRequest
from builder.text import CONTROL

#: Values of these options are one word; the others are checked on their own.
_WORDS = ("qos", "partition", "constraint", "reservation", "exclude")
#: Constraints contain & | [ ] * ( ), lists of nodes [ ] and commas.
_WORD = re.compile(r"[^\s#'\"\\\\$`]+")
_MAIL = re.compile(r"[\w.+-]+(@[\w.-]+)?")
_SIGNAL = re.compile(r"(R:)?([A-Z][A-Z0-9]*|\d{1,2})(@\d{1,5})?")
#: Options of sbatch that builder writes itself, and what to pass instead.
_OWN = {
    "nodes": "--nodes",
    "N": "--nodes",
    "time": "--time",
    "t": "--time",
    "account": "--account",
    "A": "--account",
    "job-name": "--name",
    "J": "--name",
    "array": "--chain",
    "a": "--chain",
    "qos": "--qos",
    "q": "--qos",
    "partition": "--partition",
    "p": "--partition",
    "constraint": "--constraint",
    "C": "--constraint",
    "mem": "--mem",
    "cpus-per-task": "--cpus",
    "c": "--cpus",
    "reservation": "--reservation",
    "exclude": "--exclude",
    "x": "--exclude",
    "requeue": "--requeue",
    "signal": "--signal",
    "mail-user": "--mail",
    "ntasks": "--gpus or --tasks",
    "n": "--gpus or --tasks",
    "ntasks-per-node": "--gpus or --tasks",
}


def check_slurm_request(recipe: Recipe, asked: SlurmRequest) -> None:
    """Checks the form of the options, and whether the site accepts them.

    Raises:
        UsageError: the site has no scheduler or refuses an option, or a value has another form.
    """
    given = [field.name for field in fields(asked) if getattr(asked, field.name) != field.default]
    if not given:
        return
    slurm = recipe.site.slurm
    first = "slurm" if given[0] == "extra" else given[0]
    if slurm is None:
        raise UsageError(f"{recipe.site_title} has no scheduler, which --{first} needs", "leave it out")
    for refused, reason in slurm.refused.items():
        if refused in given:
            raise UsageError(f"--{refused}: {recipe.site_title} does not accept it", reason)
    for name in _WORDS:
        value = getattr(asked, name)
        if value and (not _WORD.fullmatch(value) or CONTROL.search(value)):
            raise UsageError(f"--{name} {value!r} is not one word", f"pass --{name} NAME as Slurm reads it")
    _check_sizes(recipe, asked)
    if asked.mail and not _MAIL.fullmatch(asked.mail):
        raise UsageError(f"--mail {asked.mail!r} is not an address", "pass --mail NAME@HOST")
    _check_signal(asked.signal)
    for option in asked.extra:
        _check_extra(option)


def read_extra(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Reads the values of ``--slurm``, each with one option or several.

    Raises:
        UsageError: a quote is not closed.
    """
    return tuple(word for text in texts for word in split_words("--slurm", text))


def asked_queue(slurm: Slurm, queue: Queue, asked: SlurmRequest) -> Queue:
    """Returns a queue with what the user asked for in its place.

    Another partition or QOS than the queue's does not have the queue's times.
    """
    changes: dict[str, object] = {}
    if asked.partition and asked.partition != queue.partition:
        accepted = slurm.partitions[asked.partition].qos if asked.partition in slurm.partitions else ()
        changes |= {"partition": asked.partition, "time": "", "max_time": ""}
        if accepted and queue.qos not in accepted:
            changes["qos"] = ""
    if asked.qos and asked.qos != queue.qos:
        changes |= {"qos": asked.qos, "time": "", "max_time": ""}
    if asked.constraint:
        changes["constraint"] = asked.constraint
    if asked.mem:
        changes["memory"] = asked.mem
    if asked.cpus:
        changes["cpus_per_task"] = asked.cpus
    return queue.model_copy(update=changes)


def further_options(asked: SlurmRequest) -> list[str]:
    """Returns the options that only the user asks for, but not those of batch jobs."""
    values = {"reservation": asked.reservation, "exclude": asked.exclude}
    return [*(f"--{name}={value}" for name, value in values.items() if value), *asked.extra]


def batch_options(asked: SlurmRequest, *, signal: str) -> list[str]:
    """Returns the options of batch jobs that the user asks for.

    Args:
        asked: what the user passed.
        signal: the signal before the time limit if the user names none; empty: none.
    """
    options = ["--requeue", "--open-mode=append"] if asked.requeue else []
    wanted = asked.signal or signal
    if wanted and wanted != "none":
        options.append(f"--signal={wanted}")
    if asked.mail:
        options += [f"--mail-user={asked.mail}", "--mail-type=END,FAIL"]
    return options


def names_output(asked: SlurmRequest) -> bool:
    """Returns whether the user names the file of the output: sbatch takes the last name that it reads."""
    return any(option.startswith(("--output=", "-o")) for option in asked.extra)


def _check_sizes(recipe: Recipe, asked: SlurmRequest) -> None:
    if asked.mem:
        try:
            TypeAdapter(Size).validate_python(asked.mem)
        except ValidationError:
            raise UsageError(f"--mem {asked.mem!r} is not a size", "write --mem 64G, as Slurm does") from None
    cores = recipe.site.node.cores
    if asked.cpus is not None and not 1 <= asked.cpus <= cores:
        raise UsageError(
            f"--cpus {asked.cpus}: a node of {recipe.site_title} has {cores} cores",
            f"pass the cores of each process, at most {cores}",
        )


def _check_signal(signal: str) -> None:
    if not signal or signal == "none":
        return
    if signal.startswith("B:"):
        raise UsageError(
            f"--signal {signal}: the job's script does not handle signals", f"leave B: out: {signal[2:]}"
        )
    if not _SIGNAL.fullmatch(signal):
        raise UsageError(f"--signal {signal!r} is not a signal", "write --signal TERM@120, or none")


def _check_extra(option: str) -> None:
    name = option.lstrip("-").partition("=")[0]
    if not option.startswith("-") or not name or CONTROL.search(option):
        raise UsageError(f"--slurm {option!r} is not an option", "write each as --name=value")
    own = _OWN.get(name if option.startswith("--") else name[:1])
    if own:
        raise UsageError(f"--slurm {option}: builder writes this option itself", f"pass {own} instead")
