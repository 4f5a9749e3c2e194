"""``srun`` starts one process per GPU, or as many processes as there are tasks."""

from __future__ import annotations

from typing import ClassVar

from builder.config.site import Launcher
from builder.errors import UsageError
from builder.site.launchers.base import ProcessLauncher
from builder.site.shell import ShellText


class SrunLauncher(ProcessLauncher):
    """Each process is a task of srun. Without Slurm, the script starts a single process."""

    name: ClassVar[Launcher] = "srun"
    binds_cpus: ClassVar[bool] = True

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
