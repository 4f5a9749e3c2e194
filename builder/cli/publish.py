"""``builder publish``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from builder.cli.build import tell_build
from builder.cli.context import Context, common_options, complete_target, origin_annotations, pass_context
from builder.errors import UsageError
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.config.recipe import Recipe


@click.command()
@click.argument("names", nargs=-1, metavar="TARGET...", shell_complete=complete_target)
@click.option("--group", "groups", multiple=True, help="All targets of a recipe group.")
@click.option("--to", help="HOST/REPOSITORY, or oci:DIR: an OCI layout on disk.")
@click.option("--registry", help="HOST[/PROJECT] instead of the recipe's host.")
@click.option("--tag", "month", metavar="YY.MM", help="Takes the place of the recipe's dated tags.")
@click.option(
    "--no-tags",
    is_flag=True,
    help="Send everything but the tags, untested: to be tested and tagged on the target.",
)
@click.option("--force", is_flag=True, help="Let a dated tag move to another digest.")
@click.option(
    "--smoke",
    "policy",
    type=click.Choice(["auto", "always"]),
    default="auto",
    show_default=True,
    help="auto: an image that passed on this machine is not tested again.",
)
@click.option(
    "--runner",
    type=click.Choice(["docker", "podman", "apptainer", "userns"]),
    help="What runs the smoke test.",
)
@click.option(
    "--mount-from",
    multiple=True,
    metavar="REPOSITORY",
    help="A repository of the same registry that may hold some blobs.",
)
@click.option("--dry-run", is_flag=True, help="Build and say what would be published.")
@click.option("--source", envvar="BUILDER_SOURCE", help="Annotation org.opencontainers.image.source.")
@click.option("--revision", envvar="BUILDER_REVISION", help="Annotation org.opencontainers.image.revision.")
@common_options
@pass_context
def publish(
    context: Context,
    names: tuple[str, ...],
    groups: tuple[str, ...],
    to: str | None,
    registry: str | None,
    month: str | None,
    no_tags: bool,
    force: bool,
    policy: str,
    runner: str | None,
    mount_from: tuple[str, ...],
    dry_run: bool,
    source: str | None,
    revision: str | None,
) -> None:
    """Build, smoke-test, push, and move the tags of targets. No tag moves unless the smoke test has passed."""
    from builder.publishing.publish import refuse_shared_tags

    if not names and not groups:
        raise UsageError("no target and no --group given", "builder targets lists them")
    recipes = context.project.recipes(names, groups)
    if not no_tags:
        refuse_shared_tags(recipes, to, registry, month)

    def one(recipe: Recipe) -> dict[str, Any]:
        return publish_one(
            context,
            recipe,
            to=to,
            registry=registry,
            month=month,
            move_tags=not no_tags,
            force=force,
            policy=policy,
            runner=runner,
            mount_from=mount_from,
            dry_run=dry_run,
            annotations=origin_annotations(source, revision),
        )

    context.each(recipes, one)


_PUSHED = ("blobs_sent", "bytes_sent", "blobs_mounted", "blobs_present", "seconds")


def publish_one(
    context: Context,
    recipe: Recipe,
    *,
    to: str | None = None,
    registry: str | None = None,
    month: str | None = None,
    move_tags: bool = True,
    force: bool = False,
    policy: str = "auto",
    runner: str | None = None,
    mount_from: Sequence[str] = (),
    dry_run: bool = False,
    annotations: dict[str, str] | None = None,
    agreed: Callable[[str], bool] = lambda question: True,
) -> dict[str, Any]:
    """Builds and publishes one target and tells about it; gives what ``--json`` shows.

    ``agreed`` is asked before anything is sent; without its yes the build stays here.
    """
    from builder.publishing.attest import PROVENANCE, SBOM, SMOKE_REPORT
    from builder.publishing.publish import TagPlan, destination_text
    from builder.publishing.publish import publish as publish_image

    project = context.project
    where = destination_text(recipe, to, registry)
    tags = TagPlan.of(recipe, month)
    result = project.build(recipe, annotations=annotations)
    tell_build(context, result)
    if not agreed(f"Smoke-test {recipe.name} and publish it to {where} as {', '.join(tags.tags)}?"):
        kept = project.place(result)
        context.output.note(
            f"{recipe.name} is built, not published: {kept if result.sif else f'oci:{kept}:{recipe.name}'}"
        )
        return {"target": recipe.name, "digest": result.digest, "published": False}
    done = publish_image(
        project,
        result,
        to=where,
        tags=tags,
        policy="always" if policy == "always" else "auto",
        runner=runner,
        force=force,
        dry_run=dry_run,
        move_tags=move_tags,
        mount_from=mount_from,
        annotations=annotations,
    )
    lines = [f"[bold]{recipe.name}[/bold] {'would be' if dry_run else 'is'} {done.reference}@{done.digest}"]
    if done.tags:
        lines.append(f"  tags: {', '.join(done.tags)}; smoke test: {done.smoke}")
    if done.push:
        p = done.push
        lines.append(
            f"  sent {p.blobs_sent} blobs, {human_bytes(p.bytes_sent)}; "
            f"{p.blobs_mounted} mounted, {p.blobs_present} there already; {p.seconds:.1f} s"
        )
    if done.attached:
        names = {SBOM: "bill of material", PROVENANCE: "provenance", SMOKE_REPORT: "smoke report"}
        lines.append(f"  attached: {', '.join(names[kind] for kind in done.attached)}")
    context.output.text("\n".join(lines))
    push = done.push
    return {
        "target": recipe.name,
        "reference": done.reference,
        "digest": done.digest,
        "tags": done.tags,
        "smoke": done.smoke,
        "dry_run": dry_run,
        "attached": dict(done.attached),
        "push": {k: getattr(push, k) for k in _PUSHED} if push else None,
        "build_seconds": result.timings,
    }
