"""The options of ``builder job`` that Slurm reads: ``--partition``, ``--mem`` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from builder.site.request import SlurmRequest

#: Declarations and settings of the options, for click. The names are those of SlurmRequest's fields.
_OPTIONS: tuple[tuple[list[str], dict[str, Any]], ...] = (
    (["--partition"], {"metavar": "P", "help": "Slurm partition in the place of the recipe's."}),
    (["--qos"], {"metavar": "Q", "help": "Slurm QOS in the place of the recipe's."}),
    (["--constraint"], {"metavar": "C", "help": "Features that the nodes must have."}),
    (["--mem"], {"metavar": "SIZE", "help": "Memory per node: 64G."}),
    (["--cpus"], {"type": int, "metavar": "N", "help": "Cores per process."}),
    (["--reservation"], {"metavar": "R", "help": "A reservation to run in."}),
    (["--exclude"], {"metavar": "NODES", "help": "Nodes that the job must not use: node[1-3]."}),
    (
        ["--requeue"],
        {"is_flag": True, "help": "Start the job again when a node fails or the job is preempted."},
    ),
    (
        ["--signal"],
        {
            "metavar": "NAME@SECONDS",
            "help": "Signal before the time limit, to save a checkpoint. In a chain: TERM@120; or none.",
        },
    ),
    (["--mail"], {"metavar": "ADDRESS", "help": "Mail when the job ends or fails."}),
    (
        ["--slurm", "extra"],
        {
            "multiple": True,
            "metavar": "OPTIONS",
            "help": 'Further options of sbatch: --slurm "--gres=lscratch:50".',
        },
    ),
)


#: The options of ``builder build``, ``smoke`` and ``publish`` with ``--on slurm``.
QUEUE_OPTIONS: tuple[tuple[list[str], dict[str, Any]], ...] = (
    (["--partition"], {"metavar": "P", "help": "With --on slurm: partition in the place of the recipe's."}),
    (["--qos"], {"metavar": "Q", "help": "With --on slurm: QOS in the place of the recipe's."}),
    (["--constraint"], {"metavar": "C", "help": "With --on slurm: features that the nodes must have."}),
    (["--reservation"], {"metavar": "R", "help": "With --on slurm: a reservation to run in."}),
)


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command; :func:`take_slurm_request` takes their values."""
    for declarations, settings in reversed(_OPTIONS):
        command = click.option(*declarations, **settings)(command)
    return command


def queue_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds :data:`QUEUE_OPTIONS` to a command; :func:`take_queue_request` takes their values."""
    for declarations, settings in reversed(QUEUE_OPTIONS):
        command = click.option(*declarations, **settings)(command)
    return command


def take_queue_request(values: dict[str, Any]) -> SlurmRequest:
    """Takes the values of :data:`QUEUE_OPTIONS` out of those of a command."""
    from builder.site.request import SlurmRequest

    given = {name: values.pop(name) for name in _queue_names()}
    return SlurmRequest(**{name: value for name, value in given.items() if value is not None})


def queue_values(asked: SlurmRequest) -> dict[str, str]:
    """Returns the values of :data:`QUEUE_OPTIONS`, by option."""
    return {f"--{name}": getattr(asked, name) for name in _queue_names()}


def _queue_names() -> list[str]:
    return [declarations[0].removeprefix("--") for declarations, _ in QUEUE_OPTIONS]


def take_slurm_request(values: dict[str, Any]) -> SlurmRequest:
    """Takes the values of the options out of those of a command.

    Raises:
        UsageError: ``--slurm`` cannot be split into words.
    """
    from builder.site.request import SlurmRequest
    from builder.site.slurmrequest import read_extra

    names = [declarations[-1].removeprefix("--") for declarations, _ in _OPTIONS]
    given = {name: values.pop(name) for name in names}
    given["extra"] = read_extra(given["extra"])
    return SlurmRequest(**{name: value for name, value in given.items() if value is not None})
