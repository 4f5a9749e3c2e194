"""The options of commands that can run the smoke test as a job: ``--on slurm``, ``--nodes`` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.smoke.options import SlurmOptions

#: Declarations and settings of the options, for click.
JOB_OPTIONS: tuple[tuple[list[str], dict[str, Any]], ...] = (
    (
        ["--on", "where"],
        {
            "type": click.Choice(["slurm"]),
            "help": "Run the smoke test as a job on the nodes of the recipe's site.",
        },
    ),
    (
        ["--nodes"],
        {
            "type": click.IntRange(min=1),
            "default": 1,
            "show_default": True,
            "help": "With --on slurm: number of nodes. With 2 or more the network is measured, too.",
        },
    ),
    (
        ["--account"],
        {
            "default": "",
            "metavar": "A",
            "help": "With --on slurm: account that the job is charged to.",
        },
    ),
    (
        ["--time", "time_limit"],
        {
            "default": "",
            "metavar": "T",
            "help": "With --on slurm: time limit of the job, in Slurm's notation.",
        },
    ),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the parameters ``where``, ``nodes``, ``account`` and ``time_limit`` to a command."""
    for declarations, settings in reversed(JOB_OPTIONS):
        command = click.option(*declarations, **settings)(command)
    return command


def check_job_options(slurm: SlurmOptions, runner: str | None = None, *, on_slurm: bool) -> None:
    """Checks the options of a job.

    Args:
        slurm: the options, as they were typed.
        runner: the value of ``--runner``; None: the option was not given.
        on_slurm: whether ``--on slurm`` was given.

    Raises:
        UsageError: an option needs ``--on slurm``, or excludes it.
    """
    if on_slurm:
        if runner:
            raise UsageError(
                "--runner cannot be combined with --on slurm: the site's recipe names the runtime",
                "leave out one of them",
            )
        return
    only_jobs = {
        "--nodes": slurm.nodes != 1,
        "--account": slurm.account,
        "--time": slurm.time_limit,
        "--image": slurm.image,
    }
    for option, given in only_jobs.items():
        if given:
            raise UsageError(f"{option} requires --on slurm", "add --on slurm")
