"""``builder pull``."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, target_argument, with_context
from builder.cli.options import choice, flag
from builder.cli.slurmoptions import ACCOUNT_VARIABLES
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.publishing.engines import EngineName
    from builder.publishing.pull import Pulled


@click.command()
@target_argument
@flag("--if-changed", help="Skip the download if the local copy already has the registry's digest.")
@click.option(
    "--tag", default="latest", show_default=True, help="Tag or digest of the published image."
)
@click.option(
    "--from",
    "origin",
    metavar="PLACE",
    help="Where it was published: HOST/REPOSITORY; HOST/ or HOST/PROJECT/ before the recipe's "
    "repository; or oci:DIR.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The file or folder for a SIF, or the OCI layout; FILE.sqsh: also a plain squashfs. "
    "Default: site.images on a machine of the site, else dist/.",
)
@click.option(
    "--account", default="", envvar=ACCOUNT_VARIABLES, help="The {account} in site.images."
)
@choice(
    "--load",
    of=["podman", "podman-hpc"],
    help="Let this engine pull the image into its own storage.",
)
@with_context
def pull(
    context: Context,
    target: str | None,
    if_changed: bool,
    tag: str,
    origin: str | None,
    output: Path | None,
    account: str,
    load: EngineName | None,
) -> None:
    """Download the published image of TARGET.

    A SIF or squashfs goes to where jobs look for it, an OCI image into dist/, or with --load into
    an engine's storage. `builder run TARGET` and jobs then run it, until the next `builder build
    TARGET`.

    In place of TARGET an image can be named, without a project: it goes into the cache.

    \b
        builder pull ghcr.io/me/mine:latest
        builder run ghcr.io/me/mine:latest -- python train.py
    """
    from builder.publishing.engines import PullEngine, pull_into
    from builder.publishing.places import open_place
    from builder.publishing.publish import destination_text
    from builder.publishing.pull import is_reference
    from builder.publishing.pull import pull as pull_image

    if target and is_reference(target):
        _pull_reference(context, target, load)
        return
    project, out = context.project, context.output
    recipe = context.project.one_recipe(target)
    where = destination_text(recipe, origin, "--from")
    place = open_place(where, project.settings, project.store, option="--from", reporter=out)
    with closing(place):
        if load:
            engine = PullEngine(load, project.settings, out)
            done = pull_into(
                engine, recipe, place, tag, if_changed=if_changed, record=project.layout
            )
        else:
            squashfs = _squashfs(recipe, output, account)
            path = project.layout if squashfs else _output(recipe, output, account, project.layout)
            done = pull_image(
                recipe, place, tag, path, project.store, if_changed=if_changed, reporter=out
            )
            done = _write_squashfs(context, recipe, done, squashfs) if squashfs else done
    text = f"{'now' if done.changed else 'already'} {done.reference}@{done.digest}\n  {done.place}"
    out.result(_value(done, recipe.name), f"{recipe.name} is {text}")


def _value(done: Pulled, target: str | None) -> dict[str, Any]:
    """Return the result as JSON."""
    return {**asdict(done), "target": target}


def _pull_reference(context: Context, reference: str, load: EngineName | None) -> None:
    """Pull an image by its name: into the cache, or into an engine's storage."""
    from builder.publishing.engines import PullEngine, pull_into
    from builder.publishing.places import open_place
    from builder.publishing.pull import AnyImage, Pulled, pull_reference, split_image
    from builder.store.blobs import Store

    settings, out = context.settings, context.output
    store = Store(settings.cache)
    if load is None:
        pulled = pull_reference(reference, settings, store, reporter=out)
        done = Pulled(reference, pulled.reference, pulled.digest, pulled.changed, "cache")
        text = f"run it: builder run {reference} -- COMMAND"
    else:
        where, tag = split_image(reference)
        with closing(open_place(where, settings, store, reporter=out)) as place:
            done = pull_into(PullEngine(load, settings, out), AnyImage(reference), place, tag)
        text = done.place
    out.result(_value(done, None), f"{done.reference} is here: {done.digest}\n  {text}")


def _output(recipe: Recipe, output: Path | None, account: str, layout: Path) -> Path:
    """Return the file for a SIF, or the folder of the OCI layout."""
    from builder.site.images import site_sif

    if recipe.format != "sif":
        return output or layout
    if output is None:
        return site_sif(recipe, account, os.environ) or layout / f"{recipe.name}.sif"
    return output / f"{recipe.name}.sif" if output.is_dir() else output


def _squashfs(recipe: Recipe, output: Path | None, account: str) -> Path | None:
    """Return the file for a plain squashfs of the OCI image; None: none is wanted.

    Raises:
        UsageError: the target is a SIF.
    """
    from builder.image.convert import SQUASHFS_SUFFIXES
    from builder.site.images import site_sif

    if output is None:
        return site_sif(recipe, account, os.environ) if recipe.site.runtime.kind == "edf" else None
    if output.suffix not in SQUASHFS_SUFFIXES:
        return None
    if recipe.format == "sif":
        raise UsageError(
            f"--output {output}: {recipe.name} is a SIF",
            "name a FILE.sif, or build the target with format: oci",
        )
    return output


def _write_squashfs(context: Context, recipe: Recipe, done: Pulled, path: Path) -> Pulled:
    """Write the image that was pulled into dist/ as a plain squashfs too."""
    from dataclasses import replace

    from builder.image.convert import convert_image

    project = context.project
    source = f"oci:{project.layout}:{recipe.name}"
    convert_image(source, str(path), project.settings, project.store, reporter=context.output)
    return replace(done, place=str(path))
