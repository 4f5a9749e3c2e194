"""Runs a command in a container that a plugin of srun starts."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.site.command import run_site, site_command
from builder.site.containers import ContainerRequest
from builder.site.images import check_sif
from builder.site.shell import expand
from builder.site.srun import SrunContainer


def run_srun(recipe: Recipe, request: ContainerRequest) -> int:
    """Run a command with srun in the allocation of this shell; return its exit code.

    Raises:
        UsageError: this shell has no allocation.
        RunnerError: srun is not installed, cannot start containers, or the image does not exist.
    """
    environ = {**os.environ, "PWD": str(Path.cwd())}
    # The current folder: the nodes must see the file.
    file = Path.cwd() / f".builder-{secrets.token_hex(4)}.toml"
    made = site_command(recipe, replace(request, edf=str(file)))
    assert made.srun is not None
    made.srun.require_plugin(environ)
    if "SLURM_JOB_ID" not in environ:
        raise UsageError(
            f"{recipe.site_title} runs containers with srun, and this shell has no allocation",
            f"builder job {recipe.name} --interactive prints the commands; "
            f"builder run {recipe.name} --print prints this one",
        )
    if "://" not in request.image:
        check_sif(request.image, environ)
    environ |= {name: expand(value, environ) for name, value in made.srun.env.items()}
    words = [*srun_words(request, made.srun), *made.words]
    try:
        if made.srun.edf:
            file.write_text("\n".join([*made.srun.edf, ""]))
            file.chmod(0o644)  # root of a node has no rights on some file systems
        return run_site(recipe, words, environ=environ).returncode
    finally:
        file.unlink(missing_ok=True)


def srun_words(request: ContainerRequest, container: SrunContainer) -> list[str]:
    """Return srun and its options for a command in a container."""
    return ["srun", *(["--pty"] if request.interactive else []), *container.options]
