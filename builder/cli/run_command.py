"""``builder run``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import (
    Context,
    common_options,
    context_exit,
    pass_context,
    site_options,
    target_and_command,
)
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.cli.run_image import RunImage
    from builder.config.recipe import Recipe
    from builder.site.command import ContainerRequest


@click.command()
@target_and_command
@click.option(
    "--print", "only_print", is_flag=True, help="Print the site's command line instead of running it."
)
@click.option("--image", default="", help="Use another image: a reference, or a SIF.")
@click.option(
    "--digest", default="", help="With builder's own runtime: refuse any other image than this one."
)
@click.option(
    "--no-build",
    is_flag=True,
    help="With builder's own runtime: run only an image that was built or pulled before, as jobs do.",
)
@click.option("--gpus", type=int, help="Number of GPUs; 0 for none. Default: all GPUs of the node.")
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="SOURCE[:TARGET[:ro]]",
    help="Mount a file or folder of the host.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable; NAME alone passes the host's value. FILE.yml, uv.lock: packages, no variable.",
)
@click.option(
    "--env-file", default="", metavar="FILE", help="A file with NAME=VALUE lines for the container."
)
@click.option(
    "--workdir", help="The folder to start in. To start in a folder of the host, mount it with --bind."
)
@click.option("--no-bind", is_flag=True, help="Do not mount the project folder; start in the image's own.")
@click.option("-i", "--interactive", is_flag=True, help="Give the command a terminal.")
@site_options
@click.option("--name", default="", help="With --env FILE: the name of the target. Default: the folder's.")
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
    name: str,
) -> None:
    """Run COMMAND in TARGET's image with the container runtime and the settings of its site.

    It is the image that was pulled or built last. TARGET can be left out in a project of one target. The
    project folder is mounted, and COMMAND (or the image's own) starts in it: an edited file needs no new
    image. In place of TARGET an image can be named, without a project: HOST/REPOSITORY:TAG. The current
    folder is mounted then, unless it is the home folder.

    \b
        builder run python train.py
        builder run ghcr.io/me/mine:latest -- python train.py
        builder run perlmutter --print -- python -u /app/ml/train_model.py
    """
    from builder.cli.run_here import bind_here
    from builder.cli.run_image import chosen_image
    from builder.site.arguments import parse_bind, parse_env
    from builder.site.command import ContainerRequest
    from builder.site.shell import from_user

    env = context.take_environment_file(env, name)
    _check_name(context, name)
    recipe, command = _recipe_and_command(context, words)
    if recipe is None:
        _refuse_recipe_options(words[0], {"--image": image, "--digest": digest, "--no-build": no_build})
    has_volumes = recipe is not None and recipe.site.runtime.has_volumes
    request = ContainerRequest(
        image="",
        command=command,
        gpus=gpus,
        binds=tuple(parse_bind(bind, volumes=has_volumes) for bind in binds),
        env=parse_env(env),
        env_file=from_user(env_file),
        interactive=interactive,
        workdir=None if workdir is None else from_user(workdir),
        may_build=not no_build,
    )
    if recipe is None:
        request = request if no_bind else bind_here(context, request)
        code = _print_or_run_reference(context, words[0], request, only_print=only_print)
    elif only_print:
        code = _print(context, recipe, request, chosen_image(recipe, image, digest))
    else:
        code = _run(context, recipe, request, chosen_image(recipe, image, digest), bind=not no_bind)
    context_exit(code)


def _check_name(context: Context, name: str) -> None:
    """Raises UsageError for ``--name`` without a file of packages."""
    if name and context.wishes.env is None:
        raise UsageError("--name: only with --env FILE.yml", f"name the target as an argument: {name}")


def _recipe_and_command(context: Context, words: tuple[str, ...]) -> tuple[Recipe | None, tuple[str, ...]]:
    """The target's recipe, or None if the first word is an image's name, and the command."""
    from builder.publishing.pull import is_reference

    if words and is_reference(words[0]):
        return None, words[1:]
    return context.recipe_and_command(words)


def _refuse_recipe_options(reference: str, options: Mapping[str, object]) -> None:
    """Raises UsageError for options that need a recipe."""
    for option, given in options.items():
        if given:
            raise UsageError(f"{option} needs a target, and {reference} is an image", f"leave out {option}")


def _print_or_run_reference(
    context: Context, reference: str, request: ContainerRequest, *, only_print: bool
) -> int:
    from builder.cli.run_here import print_reference, run_reference
    from builder.site.shell import command_line

    if not only_print:
        return run_reference(context, reference, request)
    words = print_reference(context, reference, request)
    _show(context, {"target": None, "command": words, "shell": command_line(words)})
    return 0


def _print(context: Context, recipe: Recipe, request: ContainerRequest, given: RunImage | None) -> int:
    """Prints the command line: for a shell on the site, where the folder is another one. Returns 0."""
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
    line = context.adapted(shell_line(recipe, words))
    _show(context, {"target": recipe.name, "command": words, "shell": line})
    return 0


def _show(context: Context, value: dict[str, Any]) -> None:
    context.output.result(value)
    if not context.output.as_json:
        click.echo(value["shell"])


def _run(
    context: Context, recipe: Recipe, request: ContainerRequest, given: RunImage | None, *, bind: bool
) -> int:
    """Runs the command on this machine; returns its exit code."""
    from builder.cli.run_edf import run_edf
    from builder.cli.run_here import bind_folder, bind_start, run_userns, where
    from builder.cli.run_image import image_to_run
    from builder.site.command import run_site, site_command
    from builder.site.images import check_sif
    from builder.site.paths import command_folder

    runtime = recipe.site.runtime
    if bind:
        request = bind_folder(request, context.project.root, recipe.conda.prefix, command_folder(recipe))
        request = bind_start(request, recipe.conda.prefix)
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
