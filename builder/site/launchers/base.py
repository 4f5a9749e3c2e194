"""What the launchers srun, torchrun and mpi have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from builder.config.recipe import Recipe
from builder.config.site import Additions, Launcher, slurm_of
from builder.errors import UsageError
from builder.site.checks import check_account
from builder.site.request import JobRequest
from builder.site.shell import ShellText


class ProcessLauncher(ABC):
    """Starts the processes of one job.

    Args:
        recipe: the target.
        request: what the job runs.
        gpus: GPUs per node.
    """

    name: ClassVar[Launcher]
    binds_cpus: ClassVar[bool] = False
    """Whether srun can bind each process to the cores next to its GPU."""

    def __init__(self, recipe: Recipe, request: JobRequest, gpus: int) -> None:
        self.recipe = recipe
        self.request = request
        self.gpus = gpus

    @property
    def processes(self) -> int:
        """Processes per node that run the command: one per GPU, or the number of tasks."""
        return self.gpus or self.request.tasks or self.recipe.site.node.tasks

    def check(self) -> None:
        """Checks that the site can run the job.

        Raises:
            UsageError: it cannot; the message names the option.
        """
        if self.recipe.site.slurm is None:
            self._check_without_slurm()
        else:
            check_slurm(self.recipe, self.request, self.gpus)

    @abstractmethod
    def tasks(self) -> int:
        """Returns the processes per node that Slurm (or the script) starts."""

    @abstractmethod
    def rank_variables(self) -> dict[str, str | None]:
        """Returns the variables that tell a process its rank, in torch's names."""

    def env(self) -> dict[str, str | None]:
        """Returns the variables that a process needs to find the others."""
        return {
            **self.rank_variables(),
            "MASTER_ADDR": ShellText("$MASTER_ADDR"),
            "MASTER_PORT": ShellText("$MASTER_PORT"),
        }

    def wrap(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the command that runs in each container."""
        return command

    def additions(self) -> tuple[Additions, ...]:
        """Returns the recipe's extra settings for this job."""
        return (self.recipe.site.fabric,) if self.request.nodes > 1 else ()

    def _check_without_slurm(self) -> None:
        needs_slurm = {
            "--nodes": self.request.nodes > 1,
            "--chain": bool(self.request.chain),
            "--launcher mpi": self.name == "mpi",
        }
        for option, is_used in needs_slurm.items():
            if is_used:
                raise UsageError(
                    f"{self.recipe.site_title} has no scheduler, which {option} needs",
                    "leave it out, or add site.slurm to the recipe",
                )


def check_slurm(recipe: Recipe, request: JobRequest, gpus: int) -> None:
    """Checks account and queue of a Slurm job.

    Args:
        recipe: the target, whose site has Slurm.
        request: what the job runs.
        gpus: GPUs per node.

    Raises:
        UsageError: the account is missing or has another form, or the site has no queue for the job.
    """
    slurm = slurm_of(recipe.site)
    check_account(recipe, request.account)
    leaves_gpus_unused = recipe.site.node.gpus and not gpus
    if leaves_gpus_unused and slurm.queues and "cpu" not in slurm.queues:
        raise UsageError(
            f"{recipe.site_title}: the recipe has no queue for jobs without GPUs",
            "request GPUs, or add site.slurm.queues.cpu to the recipe",
        )
