"""Jobs that run a Jupyter server: one process in a container, which a browser reaches by ssh."""

from __future__ import annotations

from dataclasses import replace

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.site.launchers import ProcessLauncher
from builder.site.request import JobRequest
from builder.site.shell import ShellText

#: Options of docker, podman and podman-hpc for the host's network.
_HOST_NETWORK = {"--network=host", "--net=host"}


class JupyterLauncher(ProcessLauncher):
    """A single process, the server, with all GPUs of the job. Without Slurm, the script starts it."""

    name = "srun"
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
        asked, runtime = self._asked, self.recipe.site.runtime
        refused = {
            "a command": asked.command,
            "--nodes": asked.nodes > 1,
            "--tasks": asked.tasks,
            "--chain": asked.chain,
            "--launcher": asked.launcher,
        }
        for name, value in refused.items():
            if value:
                message = f"--jupyter runs one server on one node, without {name}"
                raise UsageError(message, f"leave out {name}")
        if runtime.is_engine and not _HOST_NETWORK & {*runtime.options, *runtime.ranks}:
            message = f"{self.recipe.site_title}: no browser reaches a server in the container"
            raise UsageError(message, "add --network=host to site.runtime.ranks in the recipe")

    def tasks(self) -> int:
        return 1

    def rank_variables(self) -> dict[str, str | None]:
        return {}
