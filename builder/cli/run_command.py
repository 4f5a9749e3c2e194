"""``builder run``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
from builder.oci.reference import is_digest

if TYPE_CHECKING:
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

    TARGET can be left out in a project of one target.

    The project folder is mounted, and COMMAND starts in it: an edited file needs no new image. In place of
    TARGET an image can be named, without a project: HOST/REPOSITORY:TAG. The current folder is mounted then,
    unless it is the home folder.

    \b
        builder run python train.py
        builder run ghcr.io/me/mine:latest -- python train.py
        builder run perlmutter --print -- python -u /app/ml/train_model.py
    """
    from builder.cli.run_here import bind_here, run_reference
    from builder.publishing.pull import is_reference
    from builder.site.arguments import parse_bind, parse_env
    from builder.site.command import ContainerRequest
    from builder.site.shell import from_user

    env = context.take_environment_file(env, name)
    if name and context.wishes.env is None:
        raise UsageError("--name: only with --env FILE.yml", f"name the target as an argument: {name}")
    target = words[0] if words and is_reference(words[0]) else None
    if target is not None:
        _refuse_recipe_options(target, only_print, image, digest)
        recipe, image_name, command = None, target, words[1:]
    else:
        recipe, command = context.recipe_and_command(words)
        image_name = _image(context, recipe, image, digest, only_print=only_print)
    has_volumes = recipe is not None and recipe.site.runtime.has_volumes
    request = ContainerRequest(
        image=image_name,
        command=command,
        gpus=gpus,
        binds=tuple(parse_bind(bind, volumes=has_volumes) for bind in binds),
        env=parse_env(env),
        env_file=from_user(env_file),
        interactive=interactive,
        workdir=None if workdir is None else from_user(workdir),
    )
    if target is not None:
        code = run_reference(context, target, request if no_bind else bind_here(context, request))
    elif recipe is not None:
        code = _print_or_run(context, recipe, request, only_print=only_print, bind=not no_bind)
    if code:
        context_exit(code)


def _refuse_recipe_options(target: str, only_print: bool, image: str, digest: str) -> None:
    """Raises UsageError for options that need a recipe."""
    for option, given in {"--print": only_print, "--image": image, "--digest": digest}.items():
        if given:
            raise UsageError(f"{option} needs a target, and {target} is an image", f"leave out {option}")


def _image(context: Context, recipe: Recipe, image: str, digest: str, *, only_print: bool) -> str:
    """The image to run: a reference, a SIF's path or a digest; empty: builder's own runner finds it.

    Raises:
        UsageError: ``--digest`` has another form, or the site's runtime takes none.
    """
    from builder.site.images import image_reference, site_sif
    from builder.site.shell import from_user

    if digest and (image or recipe.site.runtime.kind != "userns"):
        raise UsageError(
            f"--digest is for builder's own runtime; {recipe.name} runs with {recipe.site.runtime.kind}",
            "name the image: --image REPOSITORY@sha256:...",
        )
    if digest and not is_digest(digest):
        raise UsageError(f"--digest {digest}: not a digest", "write --digest sha256:...")
    if digest:
        return digest
    if image:
        return from_user(image)
    if recipe.site.runtime.kind == "userns":
        return ""
    if recipe.site.runtime.takes_sif and not only_print and site_sif(recipe, "", os.environ) is None:
        pulled = context.project.layout / f"{recipe.name}.sif"
        if pulled.is_file():  # where build and pull put it on a machine that is not the site's
            return str(pulled)
    return image_reference(recipe)


def _print_or_run(
    context: Context, recipe: Recipe, request: ContainerRequest, *, only_print: bool, bind: bool
) -> int:
    """Returns the exit code of the command."""
    from builder.cli.run_edf import print_edf, run_edf
    from builder.cli.run_here import bind_folder, run_userns
    from builder.site.command import run_site, site_command
    from builder.site.images import check_sif
    from builder.site.shell import command_line

    runtime = recipe.site.runtime
    if only_print and runtime.kind == "edf":
        print_edf(context, recipe, request)
        return 0
    if only_print:  # for a shell on the site, where the folder is another one
        words = site_command(recipe, request).words
        line = context.adapted(command_line(words))
        if runtime.kind == "userns":
            context.output.note(f"builder's own runner runs {recipe.name}: no other program is called")
        context.output.result({"target": recipe.name, "command": words, "shell": line})
        if not context.output.as_json:
            click.echo(line)
        return 0
    if bind:
        request = bind_folder(request, context.project.root, recipe.conda.prefix)
    if runtime.kind == "userns":
        site_command(recipe, request)  # checks the request
        return run_userns(context, recipe, request)
    if runtime.kind == "edf":
        return run_edf(recipe, request)
    if runtime.takes_sif and "://" not in request.image:
        check_sif(request.image, os.environ)
    names = [name for name, value in request.env.items() if value is None]
    return run_site(recipe, site_command(recipe, request).words, names=names).returncode
