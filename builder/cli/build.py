"""``builder build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, common_options, complete_target, origin_annotations, pass_context
from builder.cli.output import human_bytes
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.engines.base import BuildResult


def describe_build(result: BuildResult) -> dict[str, Any]:
    """A build for ``--json``."""
    image = result.image
    return {
        "target": result.recipe.name,
        "digest": image.digest,
        "base": {"reference": result.base.reference, "digest": result.base.digest},
        "lock": result.lock.digest,
        "size": image.size,
        "layers": [
            {
                "digest": x.descriptor.digest,
                "diff_id": x.diff_id,
                "size": x.descriptor.size,
                "unpacked": x.unpacked,
                "title": x.title,
                "packages": x.packages,
            }
            for x in image.layers
        ],
        "conflicts": [{"path": c.path, "winner": c.winner, "losers": c.losers} for c in result.conflicts],
        "notes": result.notes,
        "seconds": result.timings,
    }


def tell_build(context: Context, result: BuildResult) -> None:
    """What a person should know of a build besides where it is."""
    for note in result.notes:
        context.output.note(note)
    if result.conflicts:
        shown = ", ".join(f"{c.path} ({c.winner})" for c in result.conflicts[:5])
        more = f" and {len(result.conflicts) - 5} more" if len(result.conflicts) > 5 else ""
        context.output.warn(f"{len(result.conflicts)} files come from several packages; the later one wins: {shown}{more}")


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option("-t", "--target", "more", multiple=True, shell_complete=complete_target, help="A target, like the argument.")
@click.option(
    "--lock", "lock_file", type=click.Path(dir_okay=False, path_type=Path), help="Build this lock file (conda-lock 1 to 4)."
)
@click.option(
    "--layout", type=click.Path(file_okay=False, path_type=Path), help="The OCI layout to write. Default: dist/ of the project."
)
@click.option("--oci-archive", type=click.Path(dir_okay=False, path_type=Path), help="Also write an OCI archive.")
@click.option("--docker-archive", type=click.Path(dir_okay=False, path_type=Path), help="Also write an archive for docker load.")
@click.option("--load", is_flag=True, help="Also load the image into the Docker engine.")
@click.option("--source", envvar="BUILDER_SOURCE", help="Annotation org.opencontainers.image.source.")
@click.option("--revision", envvar="BUILDER_REVISION", help="Annotation org.opencontainers.image.revision.")
@common_options
@pass_context
def build(
    context: Context,
    names: tuple[str, ...],
    more: tuple[str, ...],
    lock_file: Path | None,
    layout: Path | None,
    oci_archive: Path | None,
    docker_archive: Path | None,
    load: bool,
    source: str | None,
    revision: str | None,
) -> None:
    """Build the images of targets from their locks (locking first where there is no lock)."""
    chosen = [*names, *more]
    if not chosen:
        raise UsageError("no target given", f"known targets: {', '.join(r.name for r in context.project.recipes())}")
    if len(chosen) > 1 and (lock_file or oci_archive or docker_archive):
        raise UsageError("--lock, --oci-archive and --docker-archive go with one target", "build the targets one by one")
    project = context.project
    results = []
    for recipe in project.recipes(chosen):
        result = project.build(recipe, lock_file=lock_file, annotations=origin_annotations(source, revision))
        folder = project.keep(result, layout)
        tell_build(context, result)
        told = describe_build(result) | {"layout": str(folder), "tag": recipe.name}
        reference = f"builder/{recipe.name}:latest"
        if oci_archive:
            from builder.image.archive import write_oci_archive

            write_oci_archive(result.image, oci_archive, recipe.name)
        if docker_archive:
            from builder.image.archive import write_docker_archive

            write_docker_archive(result.image, docker_archive, reference)
        if load:
            from builder.image.archive import docker_load

            told["docker_id"] = docker_load(result.image, reference)
            context.output.note(f"loaded into docker as {reference}")
        results.append(told)
        if not context.output.as_json:
            seconds = sum(result.timings.values())
            context.output.result(
                None,
                f"[bold]{recipe.name}[/bold] {result.image.digest}\n"
                f"  {len(result.image.layers)} layers, {human_bytes(result.image.size)}, {seconds:.1f} s\n"
                f"  oci:{folder}:{recipe.name}",
            )
    if context.output.as_json:
        context.output.result(results[0] if len(results) == 1 else results)
