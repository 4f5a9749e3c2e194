"""``builder build``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, common_options, complete_target, origin_annotations, pass_context
from builder.engines.dispatch import ENGINES
from builder.errors import UsageError
from builder.store.folders import CacheFolders
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.engines.base import BuildResult
    from builder.model import Image


def describe_build(result: BuildResult) -> dict[str, Any]:
    """A build for ``--json``; ``layers`` are those of the OCI image, where the engine made one."""
    image, sif = result.image, result.sif
    told: dict[str, Any] = {
        "target": result.recipe.name,
        "engine": result.engine,
        "format": "sif" if sif else "oci",
        "digest": result.digest,
        "base": {"reference": result.base.reference, "digest": result.base.digest},
        "lock": result.lock.digest,
        "size": result.artifact.size,
        "layers": [
            {
                "digest": x.descriptor.digest,
                "diff_id": x.diff_id,
                "size": x.descriptor.size,
                "unpacked": x.unpacked,
                "title": x.title,
                "packages": x.packages,
            }
            for x in (image.layers if image else ())
        ],
        "conflicts": [{"path": c.path, "winner": c.winner, "losers": c.losers} for c in result.conflicts],
        "notes": result.notes,
        "seconds": result.timings,
    }
    if sif and image:
        told["image"] = image.digest
    return told


def tell_build(context: Context, result: BuildResult) -> None:
    """What a person should know of a build besides where it is."""
    for note in result.notes:
        context.output.note(note)
    if result.conflicts:
        shown = ", ".join(f"{c.path} ({c.winner})" for c in result.conflicts[:5])
        more = f" and {len(result.conflicts) - 5} more" if len(result.conflicts) > 5 else ""
        context.output.warn(
            f"{len(result.conflicts)} files come from several packages; the later one wins: {shown}{more}"
        )


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option(
    "-t",
    "--target",
    "more",
    multiple=True,
    shell_complete=complete_target,
    help="A target, like the argument.",
)
@click.option(
    "--lock",
    "lock_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Build this lock file (conda-lock 1 to 4).",
)
@click.option(
    "--layout",
    type=click.Path(file_okay=False, path_type=Path),
    help="The OCI layout to write. Default: dist/ of the project.",
)
@click.option(
    "--oci-archive", type=click.Path(dir_okay=False, path_type=Path), help="Also write an OCI archive."
)
@click.option(
    "--docker-archive",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write an archive for docker load.",
)
@click.option("--load", is_flag=True, help="Also load the image into the Docker engine.")
@click.option(
    "--engine", type=click.Choice(list(ENGINES)), help="What builds, instead of the recipe's engine."
)
@click.option(
    "--on",
    type=click.Choice(["slurm"]),
    help="Build on a compute node, by a job with the recipe's site values.",
)
@click.option("--account", help="Who pays for the job (with --on).")
@click.option("--time", metavar="H:MM:SS", help="The job's longest time, instead of the site's (with --on).")
@click.option(
    "--accept-licenses",
    is_flag=True,
    help="You accept the licences that the engine asks about (cotainr: Miniforge's).",
)
@click.option(
    "--rebuild",
    is_flag=True,
    help="Have engines docker, apptainer and cotainr build again what has not changed.",
)
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
    engine: str | None,
    on: str | None,
    account: str | None,
    time: str | None,
    accept_licenses: bool,
    rebuild: bool,
    source: str | None,
    revision: str | None,
) -> None:
    """Build the images of targets from their locks (locking first where there is no lock)."""
    chosen = [*names, *more]
    if not chosen:
        raise UsageError(
            "no target given", f"known targets: {', '.join(r.name for r in context.project.recipes())}"
        )
    if len(chosen) > 1 and (lock_file or oci_archive or docker_archive):
        raise UsageError(
            "--lock, --oci-archive and --docker-archive go with one target", "build the targets one by one"
        )
    if (account or time) and not on:
        raise UsageError("--account and --time are for a build job", "add --on slurm, or leave them out")
    project = context.project
    recipes = project.recipes(chosen)
    sifs = [r.name for r in recipes if r.format == "sif"]
    if (oci_archive or docker_archive or load) and sifs:
        raise UsageError(
            f"target {sifs[0]} is a SIF: there is nothing for --oci-archive, --docker-archive or --load",
            "leave them out, or convert it: builder convert",
        )

    def build_one(recipe: Recipe) -> dict[str, Any]:
        if on == "slurm":
            return _on_slurm(
                context,
                recipe,
                account=account,
                time=time,
                lock_file=lock_file,
                layout=layout,
                engine=engine,
                accept_licenses=accept_licenses,
                rebuild=rebuild,
                source=source,
                revision=revision,
            )
        result = project.build(
            recipe,
            lock_file=lock_file,
            annotations=origin_annotations(source, revision),
            engine=engine,
            accept_licenses=accept_licenses,
            rebuild=rebuild,
        )
        place = project.place(result, layout)
        tell_build(context, result)
        told = describe_build(result)
        told |= {"sif": str(place)} if result.sif else {"layout": str(place), "tag": recipe.name}
        if result.image and not result.sif:
            told |= _more(context, result.image, recipe.name, oci_archive, docker_archive, load)
        layers = f"{len(result.image.layers)} layers, " if result.image else ""
        context.output.text(
            f"[bold]{recipe.name}[/bold] {result.digest}\n"
            f"  {layers}{human_bytes(result.artifact.size)}, {sum(result.timings.values()):.1f} s\n"
            f"  {place if result.sif else f'oci:{place}:{recipe.name}'}"
        )
        return told

    context.each(recipes, build_one)


def _on_slurm(
    context: Context,
    recipe: Recipe,
    *,
    account: str | None,
    time: str | None,
    lock_file: Path | None,
    layout: Path | None,
    engine: str | None,
    accept_licenses: bool,
    rebuild: bool,
    source: str | None,
    revision: str | None,
) -> dict[str, Any]:
    """Builds by a job; gives what the build said there. Lock and downloads are done here: compute nodes may have no network."""
    from builder.engines.prepare import fetch
    from builder.site.build_job import build_job, run_build_job

    project, settings = context.project, context.settings
    command = [
        sys.executable,
        "-m",
        "builder",
        "--project",
        str(project.root),
        "--cache",
        str(settings.cache),
    ]
    if settings.tmpdir != CacheFolders(settings.cache).tmp:
        command += ["--tmpdir", str(settings.tmpdir)]
    if settings.offline:
        command.append("--offline")
    command += ["build", recipe.name, "--json"]
    options = {
        "--lock": lock_file and lock_file.absolute(),
        "--layout": layout and layout.absolute(),
        "--engine": engine,
        "--source": source,
        "--revision": revision,
    }
    command += [word for name, value in options.items() if value for word in (name, str(value))]
    command += [
        flag for flag, given in (("--accept-licenses", accept_licenses), ("--rebuild", rebuild)) if given
    ]
    job = build_job(recipe, command, account=account, time=time)
    request = project.request(recipe, lock_file)
    if (engine or recipe.engine) != "cotainr":  # it has conda and pip download for themselves
        fetch(request)
    told = run_build_job(recipe, job, context.output)
    place = told.get("sif") or f"oci:{told.get('layout')}:{told.get('tag')}"
    context.output.text(
        f"[bold]{recipe.name}[/bold] {told.get('digest')}\n  built by {told.get('engine')} in a job\n  {place}"
    )
    return told


def _more(
    context: Context,
    image: Image,
    name: str,
    oci_archive: Path | None,
    docker_archive: Path | None,
    load: bool,
) -> dict[str, str]:
    """The other forms of an OCI image that were asked for."""
    from builder.image.archive import docker_load, write_docker_archive, write_oci_archive

    told = {}
    reference = f"builder/{name}:latest"
    if oci_archive:
        write_oci_archive(image, oci_archive, name)
    if docker_archive:
        write_docker_archive(image, docker_archive, reference)
    if load:
        told["docker_id"] = docker_load(image, reference)
        context.output.note(f"loaded into docker as {reference}")
    return told
