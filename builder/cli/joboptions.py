"""The options of commands that can run the smoke test as a job: ``--on slurm``, ``--nodes`` and so on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from builder.cli.slurmoptions import QUEUE_OPTIONS, queue_values, take_queue_request
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.site.request import SlurmRequest
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
            "help": "With --on slurm: account that the job is charged to. Default: $SBATCH_ACCOUNT.",
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
    *QUEUE_OPTIONS,
)
#: Where the account comes from without ``--account``, in this order: sbatch reads the first, srun the second.
ACCOUNT_VARIABLES = ("SBATCH_ACCOUNT", "SLURM_ACCOUNT")


def default_account() -> str:
    """The account of jobs without ``--account``; empty: none."""
    return next((os.environ[name] for name in ACCOUNT_VARIABLES if os.environ.get(name)), "")


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command; :func:`take_job_options` takes their values."""
    for declarations, settings in reversed(JOB_OPTIONS):
        command = click.option(*declarations, **settings)(command)
    return command


def take_job_options(
    values: dict[str, Any], *, runner: str | None = None, image: str = ""
) -> SlurmOptions | None:
    """Takes the values of the options out of those of a command; None without ``--on slurm``.

    Args:
        values: the command's parameters.
        runner: the value of ``--runner``; None: the option was not given.
        image: the value of ``--image``.

    Raises:
        UsageError: see :func:`check_job_options`.
    """
    from builder.smoke.options import SlurmOptions

    on_slurm = values.pop("where") == "slurm"
    options = SlurmOptions(
        image=image,
        nodes=values.pop("nodes"),
        account=values.pop("account"),
        time_limit=values.pop("time_limit"),
        asked=take_queue_request(values),
    )
    check_job_options(options, runner, on_slurm=on_slurm)
    if not on_slurm:
        return None
    return replace(options, account=options.account or default_account())


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
    require_no_job_options(
        {
            "--nodes": slurm.nodes != 1,
            "--account": slurm.account,
            "--time": slurm.time_limit,
            "--image": slurm.image,
        },
        slurm.asked,
    )


def require_no_job_options(given: Mapping[str, object], asked: SlurmRequest) -> None:
    """Checks a command without ``--on slurm``.

    Args:
        given: options and their values.
        asked: the values of the options of Slurm.

    Raises:
        UsageError: one of them was given.
    """
    for option, value in {**given, **queue_values(asked)}.items():
        if value:
            raise UsageError(f"{option} requires --on slurm", "add --on slurm")
