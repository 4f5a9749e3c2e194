"""``builder job``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, common_options, pass_context, site_options, target_and_command
from builder.cli.joboptions import ACCOUNT_VARIABLES
from builder.cli.slurmoptions import slurm_options, take_slurm_request

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.site.request import JobRequest


@dataclass(frozen=True, slots=True)
class JobOutput:
    """What to do with the planned job."""

    interactive: bool
    """Print the command lines of an interactive job instead of a script."""
    file: Path | None
    """Where to write the script; None: print it."""
    submit: bool
    """Submit the script with sbatch."""
    pin: bool
    """Name the image by the digest that the registry has now."""


@click.command()
@target_and_command
@click.option("--nodes", default=1, show_default=True, help="Number of nodes.")
@click.option(
    "--gpus",
    type=int,
    help="GPUs per node, with one process per GPU. Default: 1 on a single node, all on several nodes.",
)
@click.option("--tasks", type=int, help="Processes per node, for jobs without GPUs. Default: the recipe's.")
@click.option(
    "--time",
    default="",
    metavar="T",
    help="Time limit: HH:MM:SS, or D-HH:MM as Slurm writes it. In a chain: of each segment.",
)
@click.option(
    "--account",
    default="",
    envvar=ACCOUNT_VARIABLES,
    metavar="A",
    help="The account to charge. Default: $SBATCH_ACCOUNT.",
)
@slurm_options
@click.option(
    "--data",
    default="",
    metavar="TAR",
    help="A tar on the site, which the job unpacks on the node's own storage: $BUILDER_DATA.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="DIR",
    help="Folder for checkpoints: $BUILDER_CHECKPOINT_DIR. The newest in it is $BUILDER_RESUME.",
)
@click.option(
    "--checkpoint-pattern",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Names of checkpoints, 'NAME-*/' of folders. Default: *.pt, *.ckpt, *.h5, checkpoint-*/ ...",
)
@click.option(
    "--resume-args",
    default="",
    metavar="WORDS",
    help='Words that follow COMMAND if there is a checkpoint: "--resume {job.resume}".',
)
@click.option(
    "--chain",
    type=int,
    metavar="N",
    help="Run N segments one after the other; each resumes from the newest checkpoint.",
)
@click.option(
    "--warmup",
    default="",
    metavar="WORDS",
    help="A command that runs once on each node, in the container, before the processes: rocm-smi.",
)
@click.option("--mlflow", default="", metavar="URI", help="Address of the MLflow tracking server.")
@click.option(
    "--launcher",
    type=click.Choice(["srun", "torchrun", "mpi", "ray"]),
    help="Launcher of the processes. Default: the recipe's.",
)
@click.option("--image", default="", help="Use another image: a reference, or a SIF on the site.")
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="SOURCE[:TARGET[:ro]]",
    help="Mount a file or folder of the site.",
)
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable; NAME alone passes the value of the submitting shell. FILE.yml, uv.lock: "
    "packages instead of a recipe, no variable.",
)
@click.option(
    "--env-file",
    default="",
    metavar="FILE",
    help="A file of the site with NAME=VALUE lines for the container. Its content is not in the script.",
)
@click.option(
    "--name", default="", help="Name of the job, and with --env FILE of the target. Default: the target's."
)
@click.option(
    "--check-fabric", is_flag=True, help="On several nodes: fail if the network plugin is not used."
)
@click.option(
    "--interactive",
    is_flag=True,
    help="Print the command that allocates a node with a terminal, and the command to run there.",
)
@click.option(
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the script to this file instead of printing it.",
)
@click.option("--submit", is_flag=True, help="Submit the script with sbatch.")
@click.option(
    "--pin",
    is_flag=True,
    help="Name the image by the digest that its tag has now, as --submit does. Asks the registry once.",
)
@site_options
@common_options
@pass_context
def job(
    context: Context,
    /,
    words: tuple[str, ...],
    env: tuple[str, ...],
    interactive: bool,
    file: Path | None,
    submit: bool,
    pin: bool,
    **values: Any,
) -> None:
    """Write a batch script that runs COMMAND in TARGET's image on its site.

    TARGET can be left out in a project of one target. Words of COMMAND can contain {job.data}, {job.id},
    {job.resume}, {job.checkpoints} and {env.NAME}, which the job fills in.

    \b
        builder job lumi-g --nodes 2 --account project_465000000 --output train.sh -- python train.py
        builder job alliance-fir --account def-me --data set.tar --chain 7 --submit -- python train.py
    """
    from builder.cli.run_image import with_image
    from builder.site.arguments import parse_env, split_words
    from builder.site.jobvariables import unfilled
    from builder.site.request import JobRequest

    env = context.take_environment_file(env, str(values["name"]))
    recipe, command = context.recipe_and_command(words)
    # The options' names are those of the request's fields, and click has validated their types.
    slurm = take_slurm_request(values)
    values["warmup"] = split_words("--warmup", values["warmup"])
    request = JobRequest(command=command, env=parse_env(env), slurm=slurm, **values)
    output = JobOutput(interactive, file, submit, pin)
    warning = unfilled(command)
    if warning:
        context.output.warn(warning)
    if interactive:
        _check_interactive(request, output)
        _print_salloc(context, recipe, with_image(context, recipe, request, submit=False, pin=pin))
    else:
        _write_script(context, recipe, request, output)


def _check_interactive(request: JobRequest, output: JobOutput) -> None:
    """Raises UsageError for options of batch jobs: they would have no effect."""
    from builder.errors import UsageError

    given = {"--output": output.file, "--submit": output.submit, "--chain": request.chain}
    for option, value in given.items():
        if value:
            raise UsageError(
                f"{option} is for batch jobs: --interactive prints what to type", f"leave out {option}"
            )


def _print_salloc(context: Context, recipe: Recipe, request: JobRequest) -> None:
    from builder.site.command import shell_line
    from builder.site.edf import with_edf
    from builder.site.plan import edf_name, salloc
    from builder.site.shell import command_line

    planned = salloc(recipe, request)
    allocate, then = command_line(planned.allocate), shell_line(recipe, planned.then)
    if planned.edf:
        then = with_edf(planned.edf, edf_name(recipe), then)
    context.output.result({"target": recipe.name, "salloc": allocate, "then": then})
    if not context.output.as_json:
        click.echo(f"{allocate}\n{then}")


def _write_script(context: Context, recipe: Recipe, request: JobRequest, output: JobOutput) -> None:
    from builder.cli.run_image import with_image
    from builder.errors import UsageError
    from builder.site.edf import require_engine
    from builder.site.plan import plan_job
    from builder.site.render import render
    from builder.site.scheduler import submit
    from builder.site.status import require_current
    from builder.store.files import write_output

    if output.submit and recipe.site.slurm is None:
        raise UsageError(
            f"{recipe.site_title} has no scheduler to submit jobs to",
            "write the script with --output FILE and run it on the machine",
        )
    if output.submit:
        require_current(recipe)
    if output.submit and recipe.site.runtime.kind == "edf":
        require_engine(os.environ)
    plan_job(recipe, request)  # what is wrong is reported before the registry is asked
    request = with_image(context, recipe, request, submit=output.submit, pin=output.pin)
    script = render(plan_job(recipe, request))
    if output.file is not None:
        if not output.file.parent.is_dir():
            raise UsageError(
                f"--output {output.file}: the folder {output.file.parent} does not exist",
                "create it, or choose another folder",
            )
        write_output(output.file, script.encode(), mode=0o755)
    number = submit(script) if output.submit else None

    context.output.result({"target": recipe.name, "script": script, "file": output.file, "job": number})
    if context.output.as_json:
        return
    if number is not None:
        click.echo(number)
    elif output.file is None:
        click.echo(script, nl=False)
    if output.file is not None:
        starts = "submit it with: sbatch" if recipe.site.slurm else "run it with: bash"
        advice = "" if number else f"; {starts} {output.file}"
        context.output.note(f"wrote {output.file}{advice}")
