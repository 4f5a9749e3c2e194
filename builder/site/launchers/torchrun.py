"""``torchrun`` runs once per node and starts the node's processes itself."""

from __future__ import annotations

from builder.site.launchers.base import ProcessLauncher
from builder.site.shell import ShellText


class TorchrunLauncher(ProcessLauncher):
    """One task of srun per node runs torchrun, which sets the rank variables of its processes."""

    name = "torchrun"

    def tasks(self) -> int:
        return 1

    def rank_variables(self) -> dict[str, str | None]:
        return {}

    def wrap(self, command: tuple[str, ...]) -> tuple[str, ...]:
        words = ["torchrun", f"--nnodes={self.request.nodes}", f"--nproc-per-node={self.processes}"]
        if self.request.nodes > 1:
            words.append(ShellText("--node-rank=$SLURM_NODEID"))
        words.append(ShellText("--master-addr=$MASTER_ADDR"))
        words.append(ShellText("--master-port=$MASTER_PORT"))
        words.append("--no-python")
        return (*words, *command)
