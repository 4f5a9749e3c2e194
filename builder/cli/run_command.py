"""``builder run``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from builder.cli.context import (
    Context,
    common_options,
    container_options,
    context_exit,
    pass_context,
    target_and_command,
)
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.cli.run_image import RunImage
    from builder.config.recipe import Recipe
    from builder.site.containers import ContainerRequest


@click.command()
@target_and_command
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the site's command line instead of running it.",
)
@container_options
@click.option(
    "--digest", default="", help="With builder's own runtime: refuse any other image than this one."
)
@click.option(
    "--no-build",
    is_flag=True,
    help="With builder's own runtime: run only an image that was built or pulled before, as jobs do.",
)
@click.option(
    "--gpus",
    type=click.IntRange(min=0),
    help="Number of GPUs; 0 for none. Default: all GPUs of the node.",
)
@click.option(
    "--workdir",
    help="The folder to start in. To start in a folder of the host, mount it with --bind.",
)
@click.option(
    "--no-bind", is_flag=True, help="Do not mount the project folder; start in the image's own."
)
@click.option("-i", "--interactive", is_flag=True, help="Give the command a terminal.")
@common_options
@pass_context
def run(
    context: Context,
    words: tuple[str, ...],
    only_print: bool,
    image: str,
    digest: str,
    no_build: bool,
    gpus: int | None,
    binds: tuple[str, ...],
    env: tuple[str, ...],
    env_file: str,
    workdir: str | None,
    no_bind: bool,
    interactive: bool,
) -> None:
    """Run COMMAND in TARGET's image with the container runtime and the settings of its site.

    It is the image that was pulled or built last. TARGET can be left out in a project of one
    target. The project folder is mounted, and COMMAND (or the image's own) starts in it: an edited
    file needs no new image. In place of TARGET an image can be named, without a project:
    HOST/REPOSITORY:TAG. The current folder is mounted then, unless it is the home folder.

    \b
        builder run python train.py
        builder run ghcr.io/me/mine:latest -- python train.py
        builder run perlmutter --print -- python -u /app/ml/train_model.py
    """
    from builder.cli.run_here import bind_here, run_reference
    from builder.cli.run_image import chosen_image
    from builder.site.arguments import parse_bind, parse_env
    from builder.site.containers import ContainerRequest
    from builder.site.shell import from_user

    recipe, command = _recipe_and_command(context, words)
    if recipe is None:
        given = {
            "--image": image,
            "--digest": digest,
            "--no-build": no_build,
            "--print": only_print,
        }
        _refuse_recipe_options(words[0], given)
    request = ContainerRequest(
        image="",
        command=command,
        gpus=gpus,
        binds=tuple(parse_bind(bind) for bind in binds),
        env=parse_env(env),
        env_file=from_user(env_file),
        interactive=interactive,
        workdir=None if workdir is None else from_user(workdir),
        may_build=not no_build,
    )
    if recipe is None:
        request = request if no_bind else bind_here(context, request)
        code = run_reference(context, words[0], request)
    elif only_print:
        code = _print(context, recipe, request, chosen_image(recipe, image, digest))
    else:
        code = _run(context, recipe, request, chosen_image(recipe, image, digest), bind=not no_bind)
    context_exit(code)


def _recipe_and_command(
    context: Context, words: tuple[str, ...]
) -> tuple[Recipe | None, tuple[str, ...]]:
    """Return the target's recipe, or None if the first word is an image's name, and the command."""
    from builder.publishing.pull import is_reference

    if words and is_reference(words[0]):
        return None, words[1:]
    return context.recipe_and_command(words)


def _refuse_recipe_options(reference: str, options: Mapping[str, object]) -> None:
    """Raise UsageError for options that need a recipe."""
    for option, given in options.items():
        if given:
            raise UsageError(
                f"{option} needs a target, and {reference} is an image", f"leave out {option}"
            )


def _print(
    context: Context, recipe: Recipe, request: ContainerRequest, given: RunImage | None
) -> int:
    """Print the command line: for a shell on the site, where the folder is another one. Returns
    0.
    """
    from builder.cli.run_edf import print_edf
    from builder.cli.run_image import printed_image
    from builder.site.command import shell_line, site_command

    request = replace(request, image=(given or printed_image(context, recipe)).name)
    if recipe.site.runtime.kind == "edf":
        print_edf(context, recipe, request)
        return 0
    words = site_command(recipe, request).words
    if recipe.site.runtime.kind == "userns":
        context.output.note(f"builder's own runner runs {recipe.name}: no other program is called")
    line = shell_line(recipe, words)
    context.output.result({"target": recipe.name, "command": words, "shell": line})
    if not context.output.as_json:
        click.echo(line)
    return 0


def _run(
    context: Context,
    recipe: Recipe,
    request: ContainerRequest,
    given: RunImage | None,
    *,
    bind: bool,
) -> int:
    """Run the command on this machine; returns its exit code."""
    from builder.cli.run_edf import run_edf
    from builder.cli.run_here import bind_folder, run_userns, where
    from builder.cli.run_image import image_to_run
    from builder.site.command import run_site, site_command
    from builder.site.images import check_sif
    from builder.site.paths import command_folder

    runtime = recipe.site.runtime
    if bind:
        request = bind_folder(
            request, context.project.root, recipe.conda.prefix, command_folder(recipe)
        )
    site_command(recipe, request)  # what is wrong is reported before an image is loaded or built
    chosen = given or image_to_run(context, recipe)
    request = replace(request, image=chosen.name)
    if runtime.kind == "userns":
        return run_userns(context, recipe, request)
    if runtime.kind == "edf":
        return run_edf(recipe, request)
    if runtime.takes_sif and "://" not in request.image:
        check_sif(request.image, os.environ)
    if chosen.origin:
        context.output.note(f"running {recipe.name}{where(request)}: {chosen.origin}")
    names = [name for name, value in request.env.items() if value is None]
    return run_site(recipe, site_command(recipe, request).words, names=names).returncode
