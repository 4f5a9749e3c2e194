"""``builder run`` and ``builder job --interactive`` with the Container Engine, which srun
starts.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.cli.context import Context
    from builder.config.recipe import Recipe
    from builder.site.containers import ContainerRequest


def print_edf(context: Context, recipe: Recipe, request: ContainerRequest) -> None:
    """Print shell lines that write the file for ``srun --environment``, and the srun that uses
    it.
    """
    from builder.site.command import site_command
    from builder.site.edf import with_edf
    from builder.site.job_plan import edf_name
    from builder.site.shell import command_line

    made = site_command(recipe, request)
    name = edf_name(recipe)
    words = [*_srun(request, name), *made.words]
    text = with_edf(made.edf, name, command_line(words))
    edf = "\n".join(made.edf)
    context.output.result({"target": recipe.name, "command": words, "edf": edf, "shell": text})
    if not context.output.as_json:
        click.echo(text)


def run_edf(recipe: Recipe, request: ContainerRequest) -> int:
    """Run a command with srun in the allocation of this shell; returns its exit code.

    Raises:
        UsageError: this shell has no allocation.
        RunnerError: srun is not installed, cannot start containers, or the image does not exist.
    """
    from builder.site.command import run_site, site_command
    from builder.site.edf import LOGIN_SHELL, require_engine
    from builder.site.images import check_sif

    environ = {**os.environ, "PWD": str(Path.cwd()), LOGIN_SHELL: "no"}
    require_engine(environ)
    if "SLURM_JOB_ID" not in environ:
        raise UsageError(
            f"{recipe.site_title} runs containers with srun, and this shell has no allocation",
            f"builder job {recipe.name} --interactive prints the commands; "
            f"builder run {recipe.name} --print prints this one",
        )
    if "://" not in request.image:
        check_sif(request.image, environ)
    made = site_command(recipe, request)
    # The current folder: the nodes must see the file.
    with tempfile.NamedTemporaryFile(
        "w", dir=Path.cwd(), prefix=".builder-", suffix=".toml"
    ) as file:
        os.fchmod(file.fileno(), 0o644)  # root of a node has no rights on some file systems
        file.write("\n".join([*made.edf, ""]))
        file.flush()
        return run_site(
            recipe, [*_srun(request, file.name), *made.words], environ=environ
        ).returncode


def _srun(request: ContainerRequest, file: str) -> list[str]:
    return ["srun", *(["--pty"] if request.interactive else []), f"--environment={file}"]
