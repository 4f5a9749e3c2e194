"""``builder job``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.core.errors import refuse

from .context import Context, Words, WordsCommand, pass_context, words_argument
from .options import (
    COUNT,
    FILE,
    choice,
    container_options,
    flag,
    option,
    require_folder,
    text_option,
)
from .slurmoptions import ACCOUNT_VARIABLES, raw_slurm_option

if TYPE_CHECKING:
    from builder.lock.config.recipe import Recipe


@click.command(cls=WordsCommand)
@words_argument
@option("--nodes", type=COUNT, default=1, show_default=True)
@option("--gpus", type=click.IntRange(min=0))
@option("--tasks", type=COUNT)
@text_option("--time", "T")
@text_option("--account", "A", envvar=ACCOUNT_VARIABLES)
@text_option("--partition", "P")
@text_option("--qos", "Q")
@raw_slurm_option
@text_option("--data", "TAR")
@text_option("--checkpoint", "DIR")
@option("--chain", type=COUNT, metavar="N")
@choice("--launcher", of=["srun", "torchrun", "mpi"])
@container_options
@flag("--interactive")
@option("--output", "file", type=FILE)
@flag("--submit")
@flag("--jupyter")
@pass_context
def job(
    context: Context,
    /,
    words: Words,
    interactive: bool,
    file: Path | None,
    submit: bool,
    **values: Any,
) -> None:
    """Write a batch script that runs COMMAND in TARGET's image on its site.

    TARGET can be left out in a project of one target. COMMAND reaches the program unchanged; bash
    -c '...' fills in variables of the job, such as "$BUILDER_DATA".

    \b
        builder job lumi-g --nodes 2 --account project_465000000 --output train.sh -- python train.py
        builder job alliance-fir --account def-me --data set.tar --chain 7 --submit -- python train.py
    """
    from builder.deliver.launch.images import target_images
    from builder.deliver.launch.jobs import interactive_job, job_script
    from builder.deliver.site.arguments import parse_env
    from builder.deliver.site.request import JobRequest
    from builder.deliver.site.slurm import read_slurm

    recipe, command = context.recipe_and_command(words)
    # The options' names are those of the request's fields, and click has validated their types.
    values["env"] = parse_env(values["env"])
    queue = {name: values.pop(name) for name in ("partition", "qos")}
    request = JobRequest(command=command, slurm=read_slurm(values.pop("slurm"), **queue), **values)
    images = target_images(context.project, recipe)
    if interactive:
        given = {
            "--output": file,
            "--submit": submit,
            "--chain": request.chain,
            "--jupyter": request.jupyter,
        }
        about = "{} is for batch jobs: --interactive prints what to type"
        refuse(given, about, "leave out {}")
        click.echo(interactive_job(images, request))
    else:
        script = job_script(images, request, submit=submit)
        _write(context, recipe, script, file, submit=submit)


def _write(
    context: Context, recipe: Recipe, script: str, file: Path | None, *, submit: bool
) -> None:
    """Write the script into a file, submit it, or print it."""
    from builder.core.store.files import write_output
    from builder.deliver.site.scheduler import submit as submit_script

    if file is not None:
        require_folder("--output", file)
        write_output(file, script.encode(), mode=0o755)
    if submit:
        click.echo(submit_script(script, reporter=context.output))
    elif file is None:
        click.echo(script, nl=False)
    if file is not None:
        starts = "submit it with: sbatch" if recipe.site.slurm else "run it with: bash"
        context.output.note(f"wrote {file}{'' if submit else f'; {starts} {file}'}")
