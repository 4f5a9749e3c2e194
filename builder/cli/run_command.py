"""``builder run``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.context import Context, common_options, context_exit, pass_context, target_argument
from builder.errors import ImageError, UsageError
from builder.oci.reference import is_digest

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.run.base import Mount
    from builder.site.command import ContainerRequest


@click.command()
@target_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
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
    "env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable; NAME alone passes the host's value.",
)
@click.option(
    "--workdir", help="The folder to start in. To start in a folder of the host, mount it with --bind."
)
@click.option("-i", "--interactive", is_flag=True, help="Give the command a terminal.")
@common_options
@pass_context
def run(
    context: Context,
    target: str,
    command: tuple[str, ...],
    only_print: bool,
    image: str,
    digest: str,
    gpus: int | None,
    binds: tuple[str, ...],
    env: tuple[str, ...],
    workdir: str | None,
    interactive: bool,
) -> None:
    """Run CMD in TARGET's image with the container runtime and the settings of its site.

    \b
        builder run perlmutter --print -- python -u /app/ml/train_model.py
    """
    from builder.site.arguments import parse_bind, parse_env
    from builder.site.command import ContainerRequest
    from builder.site.shell import from_user

    recipe = context.one_recipe(target)
    request = ContainerRequest(
        image=_image(recipe, image, digest),
        command=command,
        gpus=gpus,
        binds=tuple(parse_bind(bind) for bind in binds),
        env=parse_env(env),
        interactive=interactive,
        workdir=None if workdir is None else from_user(workdir),
    )
    code = _print_or_run(context, recipe, request, only_print=only_print)
    if code:
        context_exit(code)


def _image(recipe: Recipe, image: str, digest: str) -> str:
    from builder.site.images import image_reference
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
    return "" if recipe.site.runtime.kind == "userns" else image_reference(recipe)


def _print_or_run(context: Context, recipe: Recipe, request: ContainerRequest, *, only_print: bool) -> int:
    """Returns the exit code of the command."""
    from builder.site.command import run_site, site_command
    from builder.site.images import check_sif
    from builder.site.shell import command_line

    runtime = recipe.site.runtime
    words = site_command(recipe, request).words
    if only_print:
        line = command_line(words)
        context.output.result({"target": recipe.name, "command": words, "shell": line})
        if not context.output.as_json:
            click.echo(line)
        return 0
    if runtime.kind == "userns":
        return _run_userns(context, recipe, request)
    if runtime.takes_sif and "://" not in request.image:
        check_sif(request.image, os.environ)
    names = [name for name, value in request.env.items() if value is None]
    return run_site(recipe, words, names=names).returncode


def _run_userns(context: Context, recipe: Recipe, request: ContainerRequest) -> int:
    """Runs a command in the recipe's own image, without a container engine. Builds the image if needed."""
    from builder.run.base import RunOptions
    from builder.run.userns import UsernsRunner
    from builder.site.shell import expand

    mounts = [_mount(expand(bind, os.environ)) for bind in request.binds]
    project = context.project
    result = project.build(recipe)
    if is_digest(request.image) and request.image != result.digest:
        raise ImageError(
            f"{recipe.name} is {result.digest} on this machine, not {request.image}",
            "a file of the recipe, or the lock, has changed since: start again",
        )
    values = {name: os.environ.get(name) if v is None else v for name, v in request.env.items()}
    options = RunOptions(
        env={name: value for name, value in values.items() if value is not None},
        mounts=mounts,
        workdir=request.workdir,
        gpu=recipe.gpu.vendor,
        network="host",
        keep_root=True,  # the user's own image and files
        capture=False,
    )
    runner = UsernsRunner(context.settings, project.store, context.output)
    return runner.run(result.artifact, request.command, options).returncode


def _mount(bind: str) -> Mount:
    from builder.run.base import Mount
    from builder.site.arguments import read_bind, require_source

    mount = read_bind(bind)
    require_source(mount)
    return Mount(Path(mount.source), mount.target, readonly=mount.mode == "ro")
