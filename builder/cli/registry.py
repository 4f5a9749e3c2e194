"""``builder registry``."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import click
from rich.table import Table

from builder.cli.context import Context, common_options, pass_context
from builder.errors import UsageError
from builder.progress import working

if TYPE_CHECKING:
    from builder.oci.reference import Reference
    from builder.registry.prune import Pruning


@click.group()
def registry() -> None:
    """Delete old images from a registry."""


@registry.command("prune")
@click.argument("repository", metavar="HOST/REPOSITORY")
@click.option(
    "--keep",
    required=True,
    metavar="RULE",
    help="What stays: a number of months, and tags: '12 months,25.03'. The current month counts.",
)
@click.option(
    "--pattern",
    default="%y.%m",
    show_default=True,
    help="The recipe's pattern of dated tags. Other tags always stay.",
)
@click.option("--delete", is_flag=True, help="Delete it. Default: only show what would be deleted.")
@common_options
@pass_context
def registry_prune(context: Context, repository: str, keep: str, pattern: str, delete: bool) -> None:
    """Show or delete images with old dated tags (26.11), and the reports and SBOMs attached to them.

    What another tag names stays, and so does every tag that is not dated.
    """
    from builder.oci.reference import Reference
    from builder.registry.client import RegistryClient
    from builder.registry.profile import named_credentials
    from builder.registry.prune import plan_pruning, prune_repository
    from builder.registry.retention import Keep

    rule = Keep.parse(keep, pattern)
    place = Reference.parse(repository)
    if place.tag or place.digest:
        raise UsageError(f"{repository}: names an image, not a repository", f"write {place.name}")
    output = context.output
    credentials = named_credentials(warn=output.warn)
    deleted: list[str] = []
    with RegistryClient(place.host, credentials, settings=context.settings, reporter=output) as client:
        today = datetime.datetime.now(datetime.UTC).date()
        with working(output, f"reading the tags of {place.name}"):
            pruning = plan_pruning(client, place.repository, rule, today)
        _show(context, pruning)
        if delete:
            with working(output, f"deleting from {place.name}"):
                prune_repository(client, place.repository, pruning, deleted.append)
    _report(context, place, pruning, deleted if delete else None)


def _show(context: Context, pruning: Pruning) -> None:
    """Prints the tags that are deleted, and why others stay."""
    retention = pruning.retention
    for tag, other in retention.shared.items():
        context.output.note(f"{tag} stays: {other} names the same image")
    if retention.tags:
        table = Table("tag", "image", box=None)
        for tag, digest in retention.tags.items():
            table.add_row(tag, digest)
        context.output.table(table)


def _report(context: Context, place: Reference, pruning: Pruning, deleted: list[str] | None) -> None:
    retention = pruning.retention
    what = f"{len(retention.tags)} tags, {len(retention.manifests)} images and indexes"
    what += f", {len(pruning.attached)} attached artifacts"
    if not pruning.digests:
        text = f"{place.name}: nothing is old enough to be deleted"
    elif deleted is None:
        text = f"{place.name}: would delete {what}; to delete them, add --delete"
    else:
        text = f"{place.name}: deleted {what}; the registry frees the space when it next collects garbage"
    context.output.result(
        {
            "repository": place.name,
            "tags": dict(retention.tags),
            "shared": dict(retention.shared),
            "manifests": list(retention.manifests),
            "attached": list(pruning.attached),
            "deleted": deleted,
        },
        text,
    )
