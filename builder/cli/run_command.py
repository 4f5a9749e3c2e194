"""``builder run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder.core.errors import refuse

from .context import Context, Words, WordsCommand, context_exit, with_context, words_argument
from .options import container_options, flag, option

if TYPE_CHECKING:
    from builder.deliver.launch.images import TargetImages
    from builder.deliver.site.containers import ContainerRequest
    from builder.lock.config.recipe import Recipe


@click.command(cls=WordsCommand)
@words_argument
@flag("--print", "only_print")
@container_options
@option("--digest", default="")
@flag("--no-build")
@option("--gpus", type=click.IntRange(min=0))
@option("--workdir")
@flag("--no-bind")
@flag("-i", "--interactive")
@with_context
def run(
    context: Context,
    words: Words,
    only_print: bool,
    image: str,
    digest: str,
    no_build: bool,
    no_bind: bool,
    **values: Any,
) -> None:
    """Run COMMAND in TARGET's image with the container runtime and the settings of its site.

    It is the image that was pulled or built last; after an edit of the project's own package, one
    with its new wheel. TARGET can be left out in a project of one target. The project folder is
    mounted, and COMMAND (or the image's own) starts in it. In place of TARGET an image can be
    named, without a project: HOST/REPOSITORY:TAG. The current folder is mounted then, unless it is
    the home folder.

    \b
        builder run -- python train.py
        builder run ghcr.io/me/mine:latest -- python train.py
        builder run perlmutter --print -- python -u /app/ml/train_model.py
    """
    from builder.deliver.launch.here import run_reference, run_target
    from builder.deliver.launch.images import target_images
    from builder.deliver.site.arguments import parse_bind, parse_env
    from builder.deliver.site.containers import ContainerRequest
    from builder.deliver.site.shell import from_user

    reference, recipe, command = _image_and_command(context, words)
    if recipe is None:
        options = {"--image": image, "--digest": digest, "--no-build": no_build}
        about = f"{{}} needs a target, and {reference} is an image"
        refuse(options | {"--print": only_print}, about, "leave out {}")
    # The other options' names are those of the request's fields.
    values["binds"] = tuple(map(parse_bind, values["binds"]))
    values["env"] = parse_env(values["env"])
    values["env_file"] = from_user(values["env_file"])
    if values["workdir"] is not None:
        values["workdir"] = from_user(values["workdir"])
    request = ContainerRequest("", command, **values, may_build=not no_build)
    if recipe is None:
        work, root = context.work, context.root
        context_exit(run_reference(reference, request, work, bind=not no_bind, root=root))
    images = target_images(context.project, recipe)
    image = images.runtime.named_image(image, digest)
    if only_print:
        _print(context, images, request, image)
    else:
        context_exit(run_target(images, request, image, bind=not no_bind))


def _image_and_command(
    context: Context, words: Words
) -> tuple[str, Recipe | None, tuple[str, ...]]:
    """Return an image's name or the target's recipe, and the command."""
    from builder.deliver.publishing.pull import is_reference

    if words.before and is_reference(words.before[0]):
        return words.before[0], None, (*words.before[1:], *words.after)
    return "", *context.recipe_and_command(words)


def _print(context: Context, images: TargetImages, request: ContainerRequest, name: str) -> None:
    """Print the command line: for a shell on the site, where the folder is another one."""
    from builder.deliver.launch.here import printed_command

    printed = printed_command(images, request, name)
    context.output.result(printed)
    if not context.output.as_json:
        click.echo(printed["shell"])
