"""``builder pull``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.context import Context, common_options, pass_context, target_argument
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.publishing.pull import Engine, Source


@click.command()
@target_argument
@click.option(
    "--if-changed",
    is_flag=True,
    help="Ask the registry for the digest; transfer nothing when it is what is here.",
)
@click.option(
    "--tag", default="latest", show_default=True, help="Which published image; a digest will do too."
)
@click.option("--registry", help="HOST[/PROJECT] instead of the recipe's host.")
@click.option(
    "--from",
    "origin",
    metavar="PLACE",
    help="HOST/REPOSITORY, or oci:DIR: an OCI layout that was published to.",
)
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with REGISTRY_USER and REGISTRY_PASSWORD.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The SIF's file or its folder, or the OCI layout's. Default: site.images, on a machine of the site; else dist/.",
)
@click.option("--account", default="", envvar="SBATCH_ACCOUNT", help="The {account} of site.images.")
@click.option(
    "--into",
    type=click.Choice(["podman-hpc", "podman", "docker"]),
    help="Have this engine pull it into its storage.",
)
@common_options
@pass_context
def pull(
    context: Context,
    target: str,
    if_changed: bool,
    tag: str,
    registry: str | None,
    origin: str | None,
    profile: Path | None,
    output: Path | None,
    account: str,
    into: Engine | None,
) -> None:
    """Fetch the published image of TARGET: a SIF to where jobs look, an OCI image into dist/ or an engine's storage."""
    from builder.oci.reference import Reference
    from builder.publishing.publish import destination_text
    from builder.publishing.pull import LayoutSource, RegistrySource, pull_into
    from builder.publishing.pull import pull as pull_image
    from builder.registry.client import RegistryClient
    from builder.registry.profile import named_credentials
    from builder.site.images import site_sif

    project, out = context.project, context.output
    recipe = project.recipe(target)
    where = destination_text(recipe, origin, registry, "--from")
    with ExitStack() as stack:
        source: Source
        if where.startswith("oci:"):
            if into:
                raise UsageError(
                    f"--into {into} needs a registry, not {where}",
                    "leave out --into: the image goes into dist/",
                )
            source = LayoutSource(Path(where.removeprefix("oci:")).expanduser(), project.store)
        else:
            reference = Reference.parse(where)
            if reference.tag or reference.digest:
                raise UsageError(
                    f"{where} names a tag or digest", f"write {reference.name}, and the tag as --tag"
                )
            credentials = named_credentials(profile, warn=out.warn)
            client = stack.enter_context(
                RegistryClient(reference.host, credentials, settings=project.settings, reporter=out)
            )
            source = RegistrySource(client, reference.repository, project.store, out)
        if into and isinstance(source, RegistrySource):
            done = pull_into(into, recipe, source, tag, project.settings, if_changed=if_changed)
        else:
            place = output or project.layout
            if recipe.format == "sif":
                if output is None:
                    place = site_sif(recipe, account, os.environ) or place / f"{target}.sif"
                elif output.is_dir():
                    place = output / f"{target}.sif"
            done = pull_image(recipe, source, tag, place, project.store, if_changed=if_changed)
    text = f"[bold]{target}[/bold] {'is now' if done.changed else 'is already'} {done.reference}@{done.digest}\n  {done.place}"
    out.result(
        {
            "target": target,
            "reference": done.reference,
            "digest": done.digest,
            "changed": done.changed,
            "place": done.place,
        },
        text,
    )
