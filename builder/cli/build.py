"""``builder build``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import (
    Context,
    common_options,
    complete_target,
    origin_annotations,
    pass_context,
    wishes_options,
)
from builder.cli.joboptions import default_account, require_no_job_options
from builder.cli.sharedcache import refuse_shared_cache_options, shared_cache_options
from builder.cli.slurmoptions import queue_options, take_queue_request
from builder.engines.dispatch import ENGINES
from builder.errors import ImageError, UsageError
from builder.progress import working
from builder.store.folders import CacheFolders
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.engines.base import BuildResult
    from builder.model import Image
    from builder.site.build_array import BuildTask
    from builder.site.request import SlurmRequest

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
#: How many file conflicts are listed.
_SHOWN_CONFLICTS = 5
#: How many differences between two runs of the steps are listed.
_SHOWN_DIFFERENCES = 50


@dataclass(frozen=True)
class BuildOptions:
    """The options of ``builder build``, see their help texts."""

    lock_file: Path | None
    layout: Path | None
    oci_archive: Path | None
    docker_archive: Path | None
    load: bool
    engine: str | None
    on: str | None
    account: str | None
    time: str | None
    asked: SlurmRequest
    accept_licenses: bool
    rebuild: bool
    check_reproducible: bool
    source: str | None
    revision: str | None

    def check(self, recipes: list[Recipe]) -> None:
        """Raises UsageError if the options contradict each other, or do not apply to the targets."""
        if len(recipes) > 1 and (self.lock_file or self.oci_archive or self.docker_archive):
            raise UsageError(
                "--lock, --oci-archive and --docker-archive accept only one target",
                "build the targets one by one",
            )
        if not self.on:
            require_no_job_options({"--account": self.account, "--time": self.time}, self.asked)
        sifs = [recipe.name for recipe in recipes if recipe.format == "sif"]
        if sifs and (self.oci_archive or self.docker_archive or self.load):
            raise UsageError(
                f"target {sifs[0]} is a SIF, which --oci-archive, --docker-archive and --load cannot write",
                "omit them, or convert the SIF: builder convert",
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
@click.option("--all", "all_targets", is_flag=True, help="Build all targets of the project.")
@click.option(
    "--lock",
    "lock_file",
    type=_FILE,
    help="Build from this lock file, also one of conda-lock, uv, pixi or pip, instead of the target's.",
)
@click.option("--layout", type=_FOLDER, help="The OCI layout to write. Default: dist/ of the project.")
@click.option("--oci-archive", type=_FILE, help="Also write an OCI archive.")
@click.option("--docker-archive", type=_FILE, help="Also write an archive for docker load.")
@click.option("--load", is_flag=True, help="Also load the image into the Docker engine.")
@click.option("--engine", type=click.Choice(list(ENGINES)), help="Build with this engine, not the recipe's.")
@click.option(
    "--on",
    type=click.Choice(["slurm"]),
    help="Build in a job on a compute node, with the settings of the recipe's site; several targets in a "
    "job array.",
)
@click.option("--account", help="Account that pays for the job (with --on). Default: $SBATCH_ACCOUNT.")
@click.option("--time", metavar="H:MM:SS", help="Time limit of the job, instead of the site's (with --on).")
@queue_options
@click.option(
    "--accept-licenses",
    is_flag=True,
    help="Accept the licences that the engine asks about (cotainr: Miniforge's).",
)
@click.option(
    "--rebuild",
    is_flag=True,
    help="Rebuild even if nothing changed (engines docker, apptainer, cotainr).",
)
@click.option(
    "--check-reproducible",
    is_flag=True,
    help="Run the recipe's steps twice and show what differs; exit 8 if anything does.",
)
@click.option("--source", envvar="BUILDER_SOURCE", help="Annotation org.opencontainers.image.source.")
@click.option("--revision", envvar="BUILDER_REVISION", help="Annotation org.opencontainers.image.revision.")
@wishes_options
@common_options
@pass_context
@shared_cache_options
def build(
    context: Context,
    /,
    names: tuple[str, ...],
    more: tuple[str, ...],
    all_targets: bool,
    **values: Any,
) -> None:
    """Build images from locks. A target without a lock is locked first.

    Without TARGET it builds the only target of the project; --all builds all of them.
    """
    asked = take_queue_request(values)
    options = BuildOptions(**values, asked=asked)
    if options.on:
        refuse_shared_cache_options("--on slurm")
    recipes = _chosen(context, [*names, *more], all_targets=all_targets)
    if options.on and context.project.only:
        raise UsageError(
            "--on slurm needs a recipe, and --env has none", "write one: builder init --env FILE"
        )
    options.check(recipes)
    folder = options.layout or context.project.layout  # an error before the build
    if options.on and len(recipes) > 1:
        from builder.cli.build_array import build_in_array

        build_in_array(context, recipes, lambda recipe: _array_task(context, recipe, options), folder)
        return
    build_one = _build_in_job if options.on == "slurm" else _build_here
    context.each(recipes, lambda recipe: build_one(context, recipe, options))


def _chosen(context: Context, names: list[str], *, all_targets: bool) -> list[Recipe]:
    """The targets. Raises UsageError: names and ``--all`` together."""
    if not all_targets:
        return context.chosen_recipes(names)
    if names:
        raise UsageError(f"--all builds all targets, and {', '.join(names)} is named", "omit one of them")
    return [context.announced(recipe) for recipe in context.project.recipes(())]


# on this host ---------------------------------------------------------------------------------------------


def _build_here(context: Context, recipe: Recipe, options: BuildOptions) -> dict[str, Any]:
    """Builds a target, writes all its forms, and returns the build as JSON."""
    project = replace(context.project, says_left_out=True)
    result = project.build(
        recipe,
        lock_file=options.lock_file,
        annotations=origin_annotations(options.source, options.revision),
        engine=options.engine,
        accept_licenses=options.accept_licenses,
        rebuild=options.rebuild,
        check_steps=options.check_reproducible,
    )
    place = project.place(result, options.layout)
    answer = print_build(context, result, place)
    if result.image and not result.sif:
        answer |= _write_other_forms(context, result.image, recipe.name, options)
    if options.check_reproducible:
        _print_differences(context, result)
    return answer


def _print_differences(context: Context, result: BuildResult) -> None:
    """Prints what a second run of the steps left otherwise.

    Raises:
        ImageError: there is a difference.
    """
    from rich.markup import escape
    from rich.table import Table

    name, count = result.recipe.name, result.recipe.step_count
    if count == 0:
        context.output.note(f"{name} has no steps: equal inputs always make equal bytes")
        return
    if not result.differences:
        context.output.note(f"{name}: {count} steps ran twice, with equal results")
        return
    table = Table("step", "path", "what differs", box=None)
    for found in result.differences[:_SHOWN_DIFFERENCES]:
        table.add_row(escape(found.step), escape(found.path), found.what)
    context.output.table(table)
    more = len(result.differences) - _SHOWN_DIFFERENCES
    if more > 0:
        context.output.note(f"and {more} more")
    raise ImageError(
        f"{len(result.differences)} files of target {name} differ between two runs of its steps",
        "pin what the steps download, and leave out times and random numbers (SOURCE_DATE_EPOCH is set); "
        "the image is written, and is the one of the first run",
    )


def print_build(context: Context, result: BuildResult, place: Path) -> dict[str, Any]:
    """Prints a build that was written to ``place`` and returns it as JSON."""
    from builder.site.images import image_reference

    print_build_notes(context, result)
    name = result.recipe.name
    layers = f"{len(result.image.layers)} layers, " if result.image else ""
    seconds = sum(result.timings.values())
    context.output.text(
        f"[bold]{name}[/bold] {result.digest}\n"
        f"  {layers}{human_bytes(result.artifact.size)}, built in {seconds:.1f} s\n"
        f"  {place if result.sif else f'oci:{place}:{name}'}"
    )
    if result.recipe.site.runtime.kind == "edf" and result.image:
        file = image_reference(result.recipe)
        context.output.note(f'jobs run it as a squashfs: builder convert oci:{place}:{name} "{file}"')
    where = {"sif": str(place)} if result.sif else {"layout": str(place), "tag": name}
    return describe_build(result) | where


def print_build_notes(context: Context, result: BuildResult) -> None:
    """Prints the notes of a build, and a warning about files that several packages contain."""
    for note in result.notes:
        context.output.note(note)
    count = len(result.conflicts)
    if count == 0:
        return
    shown = ", ".join(f"{c.path} ({c.winner})" for c in result.conflicts[:_SHOWN_CONFLICTS])
    more = f" and {count - _SHOWN_CONFLICTS} more" if count > _SHOWN_CONFLICTS else ""
    context.output.warn(f"{count} files come from several packages; the later one wins: {shown}{more}")


def describe_build(result: BuildResult) -> dict[str, Any]:
    """Returns a build as JSON; ``layers`` is empty if the engine made no OCI image."""
    image, sif = result.image, result.sif
    layers = [
        {
            "digest": layer.descriptor.digest,
            "diff_id": layer.diff_id,
            "size": layer.descriptor.size,
            "unpacked": layer.unpacked,
            "title": layer.title,
            "packages": layer.packages,
        }
        for layer in (image.layers if image else ())
    ]
    answer: dict[str, Any] = {
        "target": result.recipe.name,
        "engine": result.engine,
        "format": "sif" if sif else "oci",
        "digest": result.digest,
        "base": {"reference": result.base.reference, "digest": result.base.digest},
        "lock": result.lock.digest,
        "size": result.artifact.size,
        "layers": layers,
        "conflicts": [{"path": c.path, "winner": c.winner, "losers": c.losers} for c in result.conflicts],
        "differences": [{"step": d.step, "path": d.path, "what": d.what} for d in result.differences],
        "notes": result.notes,
        "seconds": result.timings,
    }
    if sif and image:
        answer["image"] = image.digest
    return answer


def _write_other_forms(context: Context, image: Image, name: str, options: BuildOptions) -> dict[str, str]:
    """Writes archives and loads the image into Docker, as the options say; returns more of the JSON."""
    if not (options.oci_archive or options.docker_archive or options.load):
        return {}
    from builder.image.archive import docker_load, write_docker_archive, write_oci_archive
    from builder.oci.reference import local_name

    reference = local_name(name)
    if options.oci_archive:
        with working(context.output, f"writing {options.oci_archive}"):
            write_oci_archive(image, options.oci_archive, name)
    if options.docker_archive:
        with working(context.output, f"writing {options.docker_archive}"):
            write_docker_archive(image, options.docker_archive, reference)
    if not options.load:
        return {}
    with working(context.output, f"loading {name} into docker"):
        docker_id = docker_load(image, reference)
    context.output.note(f"{name} is loaded into docker as {reference}: docker run --rm {reference}")
    return {"docker_id": docker_id}


# in a job -------------------------------------------------------------------------------------------------


def _build_in_job(context: Context, recipe: Recipe, options: BuildOptions) -> dict[str, Any]:
    """Builds in a Slurm job and returns the JSON result of that build.

    Locks and downloads on this host, because compute nodes may have no network.
    """
    from builder.site.build_job import build_job, run_build_job

    command = _job_command(context, recipe, options)
    account = options.account or default_account()
    job = build_job(recipe, command, account=account, time=options.time or "", asked=options.asked)
    _prepare(context, recipe, options)
    answer = run_build_job(recipe, job, context.output)
    place = answer.get("sif") or f"oci:{answer.get('layout')}:{answer.get('tag')}"
    context.output.text(
        f"[bold]{recipe.name}[/bold] {answer.get('digest')}\n"
        f"  built by {answer.get('engine')} in a job\n"
        f"  {place}"
    )
    return answer


def _array_task(context: Context, recipe: Recipe, options: BuildOptions) -> BuildTask:
    """The build of one of several targets, whose packages are on this machine then."""
    from builder.site.build_array import build_task

    command = _job_command(context, recipe, options)
    account = options.account or default_account()
    task = build_task(recipe, command, account=account, time=options.time or "", asked=options.asked)
    _prepare(context, recipe, options)
    return task


def _prepare(context: Context, recipe: Recipe, options: BuildOptions) -> None:
    """Locks a target if it has no lock, and downloads what its build needs."""
    from builder.engines.prepare import download_inputs

    request = replace(context.project, says_left_out=True).request(recipe, options.lock_file)
    if (options.engine or recipe.engine) != "cotainr":  # there, conda and pip download the packages
        download_inputs(request)


def _job_command(context: Context, recipe: Recipe, options: BuildOptions) -> list[str]:
    """The command line of builder in the job."""
    project, settings = context.project, context.settings
    command = [*(sys.executable, "-m", "builder"), *("--project", str(project.root))]
    command += ["--cache", str(settings.cache)]
    if settings.tmpdir != CacheFolders(settings.cache).tmp:
        command += ["--tmpdir", str(settings.tmpdir)]
    if settings.offline:
        command.append("--offline")

    command += ["build", recipe.name, "--json"]
    values = {
        "--lock": options.lock_file and options.lock_file.absolute(),
        "--layout": options.layout and options.layout.absolute(),
        "--engine": options.engine,
        "--source": options.source,
        "--revision": options.revision,
    }
    for name, value in values.items():
        if value:
            command += [name, str(value)]
    if options.accept_licenses:
        command.append("--accept-licenses")
    if options.rebuild:
        command.append("--rebuild")
    if options.check_reproducible:
        command.append("--check-reproducible")
    return command
