"""``builder build``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.build.engines import ENGINES
from builder.core.errors import ImageError, RunnerError, UsageError
from builder.core.progress import working
from builder.core.stages import BuildOptions
from builder.core.store.folders import CacheFolders
from builder.core.store.unchanged import give_up
from builder.core.text import human_bytes, listed, option_words

from .context import Context, complete_target, with_context
from .options import FILE, choice, flag, option, origin_options, repeated, reuse_option, take_origin
from .slurmoptions import slurm_options, take_job_options
from .unchanged import repeatable

if TYPE_CHECKING:
    from builder.build.engines.base import BuildResult
    from builder.core.model import Image, Lock
    from builder.deliver.project import Project
    from builder.deliver.smoke.options import SlurmOptions
    from builder.lock.config.recipe import Recipe

#: How many file conflicts are listed.
_SHOWN_CONFLICTS = 5
#: Fields of a layer that --json prints as they are.
_LAYER_FIELDS = ("diff_id", "unpacked", "title", "packages")
#: How many differences between two runs of the steps are listed.
_SHOWN_DIFFERENCES = 20


def _destination(value: str) -> tuple[str, Path]:
    """Return kind and path of a value of ``--to``. Raise BadParameter if it is not valid."""
    kind, _, path = value.partition(":")
    if kind not in ("oci", "docker-archive") or not path:
        raise click.BadParameter(
            f"{value!r} is not oci:DIR or docker-archive:FILE; a SIF: builder convert"
        )
    found = Path(path)
    if found.is_file() if kind == "oci" else found.is_dir():
        raise click.BadParameter(f"{path} is a {'file' if kind == 'oci' else 'folder'}")
    return kind, found


@dataclass(frozen=True)
class Command(BuildOptions):
    """The options of ``builder build``, see their help texts."""

    to: tuple[tuple[str, Path], ...] = ()
    """Kind (``oci`` or ``docker-archive``) and path of each."""
    load: str | None = None
    job: SlurmOptions | None = None
    reuse: str = ""

    @property
    def layout(self) -> Path | None:
        """The OCI layout of ``--to oci:DIR``, written instead of dist/."""
        return next((path for kind, path in self.to if kind == "oci"), None)

    @property
    def archives(self) -> list[Path]:
        """The archives to write, in addition to the layout."""
        return [path for kind, path in self.to if kind != "oci"]

    def check(self, recipes: list[Recipe]) -> None:
        """Raise UsageError if the options contradict each other, or do not apply to the targets."""
        if len(recipes) > 1 and (self.lock_file or self.archives):
            message = "--lock and --to with an archive accept only one target"
            raise UsageError(message, "build the targets one by one")
        if len(self.to) - len(self.archives) > 1:
            raise UsageError("--to oci:DIR is given twice", "omit one of them")
        if self.archives or self.load:
            self._check_exports(recipes)

    def _check_exports(self, recipes: list[Recipe]) -> None:
        """Raise UsageError if the builds make no image for archives and engines."""
        sifs = [recipe.name for recipe in recipes if recipe.format == "sif"]
        if sifs:
            raise UsageError(
                f"target {sifs[0]} is a SIF, which --load and archives cannot hold",
                "omit them, or build the target with format: oci",
            )
        if self.job:
            hint = "omit them, and build once more without --on slurm when the job has ended"
            raise UsageError("--on slurm writes no archive and loads no image", hint)


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@repeated("-t", "--target", "more", shell_complete=complete_target)
@flag("--all", "all_targets")
@option("--lock", "lock_file", type=FILE)
@repeated("--to", type=_destination, metavar="KIND:PATH")
@choice("--load", of=["docker", "podman"])
@choice("--engine", of=ENGINES)
@slurm_options
@flag("--accept-licenses")
@reuse_option
@flag("--rebuild")
@flag("--check-reproducible", "check_steps")
@origin_options
@flag("--dry-run")
@with_context
@repeatable
def build(
    context: Context,
    /,
    names: tuple[str, ...],
    more: tuple[str, ...],
    all_targets: bool,
    dry_run: bool,
    **values: Any,
) -> None:
    """Build images from locks. A target without a lock is locked first.

    Without TARGET it builds the only target of the project; --all builds all of them.
    """
    job = take_job_options(values)
    annotations = take_origin(values)
    options = Command(**values, job=job, annotations=annotations)
    recipes = _chosen(context, [*names, *more], all_targets=all_targets)
    options.check(recipes)
    if dry_run or options.rebuild or options.check_steps:
        give_up("it was asked for")
    if dry_run:
        from .dry_run import print_plan

        context.each(recipes, lambda recipe: print_plan(context, recipe, options.lock_file))
        return
    folder = options.layout or context.project.layout  # an error before the build
    if job:
        from .build_jobs import build_in_jobs

        build_in_jobs(
            context, recipes, lambda recipe: _job_script(context, recipe, options), folder
        )
    else:
        context.each(recipes, lambda recipe: _build_here(context, recipe, options))


def _chosen(context: Context, names: list[str], *, all_targets: bool) -> list[Recipe]:
    """Return the targets. Raise UsageError if ``--all`` has names too."""
    if not all_targets:
        return context.chosen_recipes(names)
    if names:
        message = f"--all builds all targets, and {', '.join(names)} is named"
        raise UsageError(message, "omit one of them")
    return context.project.recipes()


# on this host ---------------------------------------------------------------------------------------------


def _build_here(context: Context, recipe: Recipe, options: Command) -> dict[str, Any]:
    """Build a target, write all its forms, and return the build as JSON."""
    project = _reusing(context, recipe, options.reuse)
    result = project.build(recipe, options)
    _note_left_out(context, recipe, result.lock)
    place = project.place(result, options.layout)
    answer = print_build(context, result, place)
    if result.image and not result.sif and (options.archives or options.load):
        answer |= _write_other_forms(context, result.image, recipe.name, options)
    if options.check_steps:
        _print_differences(context, result)
    return answer


def _reusing(context: Context, recipe: Recipe, image: str) -> Project:
    """Return the project, whose builds may reuse the target's published image."""
    from builder.lock.config.policy import has_policy

    project = context.project
    if not (image or recipe.registry.reuse or has_policy(recipe.root)):
        return project
    from builder.deliver.publishing.destination import destination_text
    from builder.deliver.publishing.reuse import reusing
    from builder.deliver.publishing.verify import Trust

    where = destination_text(recipe) if recipe.registry.host else ""
    work = reusing(project.work, recipe, where, Trust.find(recipe.root), image)
    return replace(project, build_work=work)


def _note_left_out(context: Context, recipe: Recipe, lock: Lock) -> None:
    """Print which groups of the lock the image does not have."""
    if lock.record.left_out:
        context.output.note(f"{recipe.name}: {lock.record.left_out}")


def _print_differences(context: Context, result: BuildResult) -> None:
    """Print the number of steps that ran twice.

    Raises:
        ImageError: the second run of the steps left something else.
    """
    name, count = result.recipe.name, len(result.recipe.steps)
    if not result.differences:
        context.output.note(f"{name}: {count} steps ran twice, with equal results")
        return
    shown = result.differences[:_SHOWN_DIFFERENCES]
    lines = [f"{found.step}: {found.path}: {found.what}" for found in shown]
    raise ImageError(
        f"{len(result.differences)} files of target {name} differ between two runs of its steps:\n  "
        + "\n  ".join(lines),
        "pin what the steps download, and leave out times and random numbers (SOURCE_DATE_EPOCH is set); "
        "the image is written, and is the one of the first run",
    )


def print_build(context: Context, result: BuildResult, path: Path) -> dict[str, Any]:
    """Print a build that was written to ``path``; return it as JSON."""
    print_build_notes(context, result)
    name = result.recipe.name
    layers = f"{len(result.image.layers)} layers, " if result.image else ""
    seconds = sum(result.timings.values())
    context.output.text(
        f"{name} {result.digest}\n"
        f"  {layers}{human_bytes(result.artifact.size)}, built in {seconds:.1f} s\n"
        f"  {path if result.sif else f'oci:{path}:{name}'}"
    )
    if result.recipe.site.runtime.family == "plugin" and result.image:
        from builder.deliver.site.runtimes.table import runtime_of

        file = runtime_of(result.recipe).image()
        convert = f'builder convert oci:{path}:{name} "{file}"'
        context.output.note(f"jobs run it as a squashfs: {convert}")
    where = {"sif": str(path)} if result.sif else {"layout": str(path), "tag": name}
    return describe_build(result) | where


def print_build_notes(context: Context, result: BuildResult) -> None:
    """Print the notes of a build, and warnings about libraries, conflicts and jobs."""
    from builder.deliver.site.lockchecks import job_warnings
    from builder.deliver.site.request import JobRequest

    for note in result.notes:
        context.output.note(note)
    for warning in job_warnings(result.recipe, result.lock, JobRequest()):
        context.output.warn(warning)
    _print_missing_libraries(context, result)
    if count := len(result.conflicts):
        shown = listed([f"{c.path} ({c.winner})" for c in result.conflicts], _SHOWN_CONFLICTS)
        about = f"{count} files come from several packages; the later one wins"
        context.output.warn(f"{about}: {shown}")


def _print_missing_libraries(context: Context, result: BuildResult) -> None:
    """Print a warning for each missing library, but for optional ones, and what to do."""
    missing = [library for library in result.missing_libraries if not library.optional]
    for one in missing:
        has = f" (OS package {one.os_package})" if one.os_package else ""
        context.output.warn(f"missing {one.name}{has}, needed by {', '.join(one.packages)}")
    named = {library.os_package for library in missing} - {""}
    if named:
        recipe, every = result.recipe, ", ".join(sorted({*result.recipe.base_packages, *named}))
        line = f"{recipe.source}: base_packages: [{every}]"
        context.output.note(f"to add them: {line}; then: builder lock {recipe.name}")


def describe_build(result: BuildResult) -> dict[str, Any]:
    """Return a build as JSON; ``layers`` is empty if the engine made no OCI image."""
    image, sif = result.image, result.sif
    layers = [
        {"digest": layer.descriptor.digest, "size": layer.descriptor.size}
        | {name: getattr(layer, name) for name in _LAYER_FIELDS}
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
        "conflicts": list(map(asdict, result.conflicts)),
        "missing_libraries": list(map(asdict, result.missing_libraries)),
        "differences": list(map(asdict, result.differences)),
        "notes": result.notes,
        "seconds": result.timings,
    }
    if sif and image:
        answer["image"] = image.digest
    return answer


def _write_other_forms(
    context: Context, image: Image, name: str, options: Command
) -> dict[str, str]:
    """Write archives and load the image into an engine; return more of the JSON."""
    from builder.build.image.archive import write_docker_archive
    from builder.build.run.docker import DockerRunner
    from builder.build.run.podman import PodmanRunner
    from builder.formats.oci.reference import local_name

    for archive in options.archives:
        with working(context.output, f"writing {archive}"):
            write_docker_archive(image, archive, local_name(name))
    if options.load is None:
        return {}
    project, output = context.project, context.output
    kind = DockerRunner if options.load == "docker" else PodmanRunner
    runner = kind(project.work)
    if problem := runner.available():
        hint = f"see builder doctor; or leave out --load: builder run needs no {options.load}"
        raise RunnerError(f"--load {options.load}: {problem}", hint)
    image_id = runner.keep(image, name)
    run = f"{options.load} run --rm {local_name(name)}"
    output.note(f"{name} is loaded into {options.load}: {run}")
    return {f"{options.load}_id": image_id}


# in a job -------------------------------------------------------------------------------------------------


def _job_script(context: Context, recipe: Recipe, options: Command) -> str:
    """Return the script of a target's build in a job, whose packages are on this machine then.

    It locks and downloads on this host, because compute nodes may have no network.
    """
    from builder.build.engines.prepare import download_inputs
    from builder.deliver.site.build_jobs import build_script
    from builder.lock.inputs import Inputs

    asked = options.job
    assert asked is not None
    command = _job_command(context, recipe, options)
    script = build_script(recipe, command, asked)
    request = context.project.request(Inputs.read(recipe), options)
    _note_left_out(context, recipe, request.lock)
    download_inputs(request)
    return script


def _job_command(context: Context, recipe: Recipe, options: Command) -> list[str]:
    """Return the command line of builder in the job."""
    settings = context.settings
    is_usual = settings.tmpdir == CacheFolders(settings.cache).tmp
    before = {
        "--project": context.project.root,
        "--cache": settings.cache,
        "--tmpdir": None if is_usual else settings.tmpdir,
        "--offline": settings.offline,
    }
    after = {
        "--json": True,
        "--lock": options.lock_file and options.lock_file.absolute(),
        "--to": options.layout and f"oci:{options.layout.absolute()}",
        "--engine": options.engine,
        "--accept-licenses": options.accept_licenses,
        "--rebuild": options.rebuild,
        "--check-reproducible": options.check_steps,
    }
    after |= {f"--{name.rpartition('.')[2]}": text for name, text in options.annotations.items()}
    builder = (sys.executable, "-m", "builder")
    return [*builder, *option_words(before), "build", recipe.name, *option_words(after)]
