"""``builder job``."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.context import Context, common_options, pass_context, target_argument


@click.command()
@target_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--nodes", default=1, show_default=True, help="How many nodes.")
@click.option(
    "--gpus",
    type=int,
    help="GPUs of each node, with one process for each. Default: 1, or all on several nodes.",
)
@click.option(
    "--tasks", type=int, help="Processes on each node, for jobs without GPUs. Default: the recipe's."
)
@click.option(
    "--time",
    default="",
    metavar="T",
    help="HH:MM:SS, or D-HH:MM as Slurm writes it; of one piece in a chain.",
)
@click.option("--account", default="", metavar="A", help="Whom the time is charged to.")
@click.option(
    "--data",
    default="",
    metavar="TAR",
    help="A tar on the site, unpacked to the node's own storage: $BUILDER_DATA.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="DIR",
    help="$BUILDER_CHECKPOINT_DIR; its newest *.pt is $BUILDER_RESUME.",
)
@click.option(
    "--chain",
    type=int,
    metavar="N",
    help="N pieces, one after the other, each going on from the newest checkpoint.",
)
@click.option("--mlflow", default="", metavar="URI", help="Where the run is tracked.")
@click.option(
    "--launcher", type=click.Choice(["srun", "torchrun", "mpi", "ray"]), help="Default: the recipe's."
)
@click.option(
    "--image", default="", help="Another image: a reference, or a SIF. Default: what the recipe says."
)
@click.option(
    "--bind", "binds", multiple=True, metavar="SOURCE[:TARGET[:ro]]", help="A file or folder of the site."
)
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable; NAME alone hands on the submitting shell's.",
)
@click.option("--name", default="", help="The job's name. Default: the target's.")
@click.option(
    "--check-fabric", is_flag=True, help="On several nodes: fail when the network's plugin was not used."
)
@click.option(
    "--interactive",
    is_flag=True,
    help="Print the line that gets a node with a terminal, and what to run there.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the script there instead of printing it.",
)
@click.option("--submit", "do_submit", is_flag=True, help="Queue it with sbatch, here and now.")
@common_options
@pass_context
def job(
    context: Context,
    target: str,
    command: tuple[str, ...],
    nodes: int,
    gpus: int | None,
    tasks: int | None,
    time: str,
    account: str,
    data: str,
    checkpoint: str,
    chain: int | None,
    mlflow: str,
    launcher: str | None,
    image: str,
    binds: tuple[str, ...],
    env: tuple[str, ...],
    name: str,
    check_fabric: bool,
    interactive: bool,
    output: Path | None,
    do_submit: bool,
) -> None:
    """Write a batch script that runs CMD in TARGET's image on its site.

    \b
        builder job lumi-g --nodes 2 --account project_465000000 --output train.sh -- python train.py
        builder job alliance-fir --account def-me --data set.tar --chain 7 --submit -- python train.py
    """
    from builder.errors import UsageError
    from builder.site.command import parse_env
    from builder.site.plan import JobRequest, plan_job, salloc
    from builder.site.render import render
    from builder.site.shell import command_line
    from builder.site.slurm import submit
    from builder.store.files import write_atomic

    recipe = context.one_recipe(target)
    request = JobRequest(
        command=command,
        nodes=nodes,
        gpus=gpus,
        tasks=tasks,
        time=time,
        account=account,
        data=data,
        chain=chain,
        checkpoint=checkpoint,
        mlflow=mlflow,
        launcher=launcher,  # type: ignore[arg-type]  # click has checked it
        image=image,
        name=name,
        binds=binds,
        env=parse_env(env),
        check_fabric=check_fabric,
    )
    if interactive:
        allocate, then = (command_line(words) for words in salloc(recipe, request))
        context.output.result({"target": target, "salloc": allocate, "then": then})
        if not context.output.as_json:
            click.echo(f"{allocate}\n{then}")
        return
    if do_submit and recipe.site.slurm is None:
        raise UsageError(
            f"{recipe.site.title or target} has no scheduler to submit to",
            "write the script with --output FILE and run it there",
        )
    script = render(plan_job(recipe, request))
    if output is not None:
        if not output.parent.is_dir():
            raise UsageError(
                f"--output {output}: there is no folder {output.parent}", "make it, or write elsewhere"
            )
        write_atomic(output, script.encode(), mode=0o755)
    number = submit(script) if do_submit else None
    context.output.result({"target": target, "script": script, "file": output, "job": number})
    if context.output.as_json:
        return
    if number is not None:
        click.echo(number)
    elif output is None:
        click.echo(script, nl=False)
    if output is not None:
        context.output.note(
            f"wrote {output}"
            + ("" if number else f"; submit it with: sbatch {output}" if recipe.site.slurm else "")
        )
