"""The launchers srun, torchrun and mpi: the ways in which the processes of a job start.

A job can also run a Jupyter server: one process in a container, which a browser reaches by ssh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from builder.core.errors import UsageError, refuse
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import Additions, Launcher

from .request import JobRequest
from .runtimes.table import runtime_of
from .shell import ShellText


class ProcessLauncher:
    """Starts the processes of one job: by default one on each node, without a rank.

    Args:
        recipe: the target.
        request: what the job runs.
        gpus: GPUs per node.
    """

    name: ClassVar[Launcher] = "srun"
    binds_cpus: ClassVar[bool] = False
    """Whether srun can bind each process to the cores next to its GPU."""
    uses_host_network: ClassVar[bool] = False
    """Whether a single container needs the options for containers that communicate, too."""

    def __init__(self, recipe: Recipe, request: JobRequest, gpus: int) -> None:
        self.recipe = recipe
        self.request = request
        self.gpus = gpus

    @property
    def processes(self) -> int:
        """Processes per node that run the command: one per GPU, or the number of tasks."""
        return self.gpus or self.request.tasks or self.recipe.site.node.tasks

    def check(self) -> None:
        """Check that the site can run the job.

        Raises:
            UsageError: it cannot; the message names the option.
        """
        slurm, node = self.recipe.site.slurm, self.recipe.site.node
        if slurm is None:
            self._check_without_slurm()
        elif node.gpus and not self.gpus and slurm.queues and "cpu" not in slurm.queues:
            message = f"{self.recipe.site_title}: the recipe has no queue for jobs without GPUs"
            raise UsageError(message, "request GPUs, or add site.slurm.queues.cpu to the recipe")

    def tasks(self) -> int:
        """Return the processes per node that Slurm (or the script) starts."""
        return 1

    def rank_variables(self) -> dict[str, str | None]:
        """Return the variables that tell a process its rank, in torch's names."""
        return {}

    def env(self) -> dict[str, str | None]:
        """Return the variables that a process needs to find the others."""
        return {
            **self.rank_variables(),
            "MASTER_ADDR": ShellText("$MASTER_ADDR"),
            "MASTER_PORT": ShellText("$MASTER_PORT"),
        }

    def wrap(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that runs in each container."""
        return command

    def additions(self) -> tuple[Additions, ...]:
        """Return the recipe's extra settings for this job."""
        return (self.recipe.site.fabric,) if self.request.nodes > 1 else ()

    def _check_without_slurm(self) -> None:
        needs_slurm = {
            "--nodes": self.request.nodes > 1,
            "--chain": bool(self.request.chain),
            "--launcher mpi": self.name == "mpi",
        }
        about = f"{self.recipe.site_title} has no scheduler, which {{}} needs"
        refuse(needs_slurm, about, "leave it out, or add site.slurm to the recipe")


class SrunLauncher(ProcessLauncher):
    """Each process is a task of srun. Without Slurm, the script starts a single process."""

    binds_cpus = True

    def check(self) -> None:
        super().check()
        if self.recipe.site.slurm is None and self.processes > 1:
            raise UsageError(
                f"{self.recipe.site_title} has no scheduler to start {self.processes} processes",
                "use --launcher torchrun",
            )

    def tasks(self) -> int:
        return self.processes

    def rank_variables(self) -> dict[str, str | None]:
        if self.recipe.site.slurm is None:
            return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        return {
            "RANK": ShellText("$SLURM_PROCID"),
            "LOCAL_RANK": ShellText("$SLURM_LOCALID"),
            "WORLD_SIZE": ShellText("$SLURM_NTASKS"),
        }


class TorchrunLauncher(ProcessLauncher):
    """One task of srun per node runs torchrun, which sets the rank variables of its processes."""

    name = "torchrun"
    uses_host_network = True

    def wrap(self, command: tuple[str, ...]) -> tuple[str, ...]:
        words = ["torchrun", f"--nnodes={self.request.nodes}", f"--nproc-per-node={self.processes}"]
        if self.request.nodes > 1:
            words.append(ShellText("--node-rank=$SLURM_NODEID"))
        words += map(ShellText, ("--master-addr=$MASTER_ADDR", "--master-port=$MASTER_PORT"))
        return (*words, "--no-python", *command)


class MpiLauncher(SrunLauncher):
    """Tasks of srun that communicate with the host's MPI."""

    name = "mpi"
    binds_cpus = False

    def check(self) -> None:
        if self.recipe.site.mpi is None:
            hint = f"add the host's MPI to site.mpi in {self.recipe.source}, or use --launcher srun"
            raise UsageError(f"{self.recipe.site_title}: the recipe has no 'mpi:'", hint)
        super().check()

    def additions(self) -> tuple[Additions, ...]:
        mpi = self.recipe.site.mpi
        assert mpi is not None
        return (mpi, *super().additions())


class JupyterLauncher(ProcessLauncher):
    """A single process, the server, with all GPUs of the job. Without Slurm, the script starts it."""

    uses_host_network = True

    def __init__(self, recipe: Recipe, request: JobRequest, gpus: int) -> None:
        node = recipe.site.fabric.master_address.replace("{host}", "${SLURMD_NODENAME}")
        host = ShellText(node or "$SLURMD_NODENAME") if recipe.site.slurm else "127.0.0.1"
        start, port, token = map(ShellText, ("$BUILDER_START", "$MASTER_PORT", "$BUILDER_TOKEN"))
        command = ("bash", "-c", start, "jupyter", host, port, token)
        self._asked = request
        super().__init__(recipe, replace(request, command=command), gpus)

    def check(self) -> None:
        super().check()
        asked = self._asked
        refused = {
            "a command": asked.command,
            "--nodes": asked.nodes > 1,
            "--tasks": asked.tasks,
            "--chain": asked.chain,
            "--launcher": asked.launcher,
        }
        refuse(refused, "--jupyter runs one server on one node, without {}", "leave out {}")
        runtime_of(self.recipe).check_server()


LAUNCHERS: Mapping[Launcher, type[ProcessLauncher]] = {
    kind.name: kind for kind in (SrunLauncher, TorchrunLauncher, MpiLauncher)
}
