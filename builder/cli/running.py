"""``builder run``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from builder.cli.context import Context, common_options, context_exit, pass_context, target_argument

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.run.base import Mount


@click.command()
@target_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--print", "only_print", is_flag=True, help="Print the site's command line instead of running it."
)
@click.option(
    "--image", default="", help="Another image: a reference, or a SIF. Default: what the recipe says."
)
@click.option("--gpus", type=int, help="How many GPUs; 0 for none. Default: all of the node.")
@click.option(
    "--bind", "binds", multiple=True, metavar="SOURCE[:TARGET[:ro]]", help="A file or folder of the host."
)
@click.option(
    "--env", "env", multiple=True, metavar="NAME[=VALUE]", help="A variable; NAME alone hands on the host's."
)
@click.option("--workdir", help="The folder to start in; a folder of the host is to be bound as well.")
@click.option("-i", "--interactive", is_flag=True, help="With a terminal.")
@common_options
@pass_context
def run(
    context: Context,
    target: str,
    command: tuple[str, ...],
    only_print: bool,
    image: str,
    gpus: int | None,
    binds: tuple[str, ...],
    env: tuple[str, ...],
    workdir: str | None,
    interactive: bool,
) -> None:
    """Run CMD in TARGET's image, with the container runtime of its site and all that the site needs.

    \b
        builder run perlmutter --print -- python -u /app/ml/train_model.py
    """
    from builder.site.command import (
        check_image,
        image_reference,
        parse_bind,
        parse_env,
        run_site,
        site_command,
    )
    from builder.site.shell import command_line, expand, from_user

    recipe = context.one_recipe(target)
    variables = parse_env(env)
    runtime = recipe.site.runtime
    reference = from_user(image) if image else "" if runtime.kind == "userns" else image_reference(recipe)
    words = site_command(
        recipe,
        reference,
        command,
        gpus=gpus,
        binds=[parse_bind(b) for b in binds],
        env=variables,
        interactive=interactive,
        workdir=None if workdir is None else from_user(workdir),
    )
    if only_print:
        context.output.result({"target": target, "command": words, "shell": command_line(words)})
        if not context.output.as_json:
            click.echo(command_line(words))
        return
    if runtime.kind == "userns":
        code = _userns(
            context, recipe, command, [expand(parse_bind(b), os.environ) for b in binds], variables, workdir
        )
    else:
        if runtime.takes_sif and "://" not in reference:
            check_image(reference, os.environ)
        code = run_site(recipe, words, names=[k for k, v in variables.items() if v is None]).returncode
    if code:
        context_exit(code)


def _userns(
    context: Context,
    recipe: Recipe,
    command: tuple[str, ...],
    binds: list[str],
    variables: dict[str, str | None],
    workdir: str | None,
) -> int:
    """The recipe's own image, built when it is not yet, without any container engine."""
    from builder.run.base import RunOptions
    from builder.run.userns import UsernsRunner

    project = context.project
    result = project.build(recipe)
    env = {k: os.environ.get(k) if v is None else v for k, v in variables.items()}
    options = RunOptions(
        env={k: v for k, v in env.items() if v is not None},
        mounts=[_mount(b) for b in binds],
        workdir=workdir,
        gpu=recipe.gpu.vendor,
        network="host",
        capture=False,
    )
    done = UsernsRunner(context.settings, project.store, context.output).run(
        result.artifact, command, options
    )
    return done.returncode


def _mount(bind: str) -> Mount:
    from pathlib import Path

    from builder.run.base import Mount

    source, target, *mode = bind.split(":")
    return Mount(Path(source), target, readonly=mode == ["ro"])
