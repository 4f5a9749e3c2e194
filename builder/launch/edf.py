"""Runs a command with CSCS's Container Engine, which srun starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.site.command import run_site, site_command
from builder.site.containers import ContainerRequest
from builder.site.edf import LOGIN_SHELL, require_engine
from builder.site.images import check_sif


def run_edf(recipe: Recipe, request: ContainerRequest) -> int:
    """Run a command with srun in the allocation of this shell; return its exit code.

    Raises:
        UsageError: this shell has no allocation.
        RunnerError: srun is not installed, cannot start containers, or the image does not exist.
    """
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
    here, suffix = Path.cwd(), ".toml"
    with tempfile.NamedTemporaryFile("w", dir=here, prefix=".builder-", suffix=suffix) as file:
        os.fchmod(file.fileno(), 0o644)  # root of a node has no rights on some file systems
        file.write("\n".join([*made.edf, ""]))
        file.flush()
        words = [*srun_words(request, file.name), *made.words]
        return run_site(recipe, words, environ=environ).returncode


def srun_words(request: ContainerRequest, file: str) -> list[str]:
    """Return srun and its options for a command in the container that a file describes."""
    return ["srun", *(["--pty"] if request.interactive else []), f"--environment={file}"]
