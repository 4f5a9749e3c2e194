"""The two images of ``builder smoke --ab``: named by a user, run by this host or a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.build.engines.base import BuildResult
from builder.build.image.convert import open_image
from builder.core.errors import UsageError
from builder.core.model import Image, SifImage
from builder.deliver.project import Project
from builder.deliver.site.runtimes.table import runtime_of
from builder.deliver.smoke.abrun import AbRuns, AbTest, Side, ab_here, ab_on_slurm
from builder.deliver.smoke.options import SlurmOptions
from builder.deliver.smoke.slurm import complete_job, sized
from builder.formats.oci.layout import write_layout
from builder.formats.oci.reference import is_digest, is_tag
from builder.lock.config.recipe import Recipe

from .destination import destination_text
from .pull import is_reference, pinned_reference, pull_reference

#: The name of the image that is built here.
BUILD = "build"
_FORMS = (
    f"write {BUILD}, a tag or digest of the recipe's repository, "
    "HOST/REPOSITORY:TAG, FILE.sif or oci:DIR:TAG"
)


def built_side(
    project: Project, result: BuildResult, slurm: SlurmOptions | None, *, reference: str = ""
) -> Side:
    """Return the image of a build.

    Args:
        project: of the target.
        result: the build.
        slurm: the job that will run the image; None: this host runs it.
        reference: where the image was pushed to, with its digest; empty: in the recipe's
            repository.

    Raises:
        UsageError: no job of the site can run this build.
    """
    side = Side(BUILD, result.digest, result.artifact, lock=result.lock)
    if slurm is None:
        return side
    place = project.place(result)
    if result.recipe.site.runtime.family == "own":
        return replace(side, reference=_in_layout(project, result.recipe, result.artifact))
    slurm = replace(slurm, image="")
    return replace(side, reference=complete_job(slurm, result, place, reference=reference).image)


def named_side(text: str, recipe: Recipe, project: Project, slurm: SlurmOptions | None) -> Side:
    """Return the image that a user names.

    Args:
        text: a tag or digest of the recipe's repository, ``HOST/REPOSITORY:TAG``, or a name as in
            ``builder diff``.
        recipe: the target, for whose processor and site the image is.
        project: its cache receives what is downloaded.
        slurm: the job that will run the image; None: this host runs it.

    Raises:
        UsageError: the text names no image, or jobs of the site cannot run it.
        ImageError, RegistryError: there is no such image, or it is damaged.
    """
    reference = text.removeprefix("docker://")
    if is_digest(text):
        reference = f"{_repository(recipe)}@{text}"
    elif is_tag(text) and not Path(text).exists() and not text.endswith(".sif"):
        reference = f"{_repository(recipe)}:{text}"
    if slurm is None:
        artifact = _open(reference, recipe, project)
        return Side(text, artifact.digest, artifact)
    return _side_of_job(text, reference, recipe, project)


def run_sides(project: Project, test: AbTest, slurm: SlurmOptions | None) -> AbRuns:
    """Test both images in turn, on this host or in one job; store reports in ``reports/TARGET``.

    Raises:
        UsageError, RunnerError, SpaceError: see :func:`builder.deliver.smoke.abrun.ab_here` and
            ``ab_on_slurm``.
    """
    work, reports = project.work, project.reports
    if slurm is None:
        return ab_here(test, work, reports)
    for side in test.sides.values():
        if isinstance(side.artifact, Image) and side.reference.startswith("oci:"):
            write_layout(side.artifact, project.layout, None, work.store)
    slurm = sized(slurm, test.recipe, all_gpus=test.options.all_gpus)
    return ab_on_slurm(test, slurm, (reports / test.recipe.name).absolute(), work.reporter)


def _repository(recipe: Recipe) -> str:
    """Return the repository of tags and digests."""
    if not recipe.registry.host:
        raise UsageError(
            f"{recipe.source}: registry.host is not set, so a tag or digest names no image",
            "write HOST/REPOSITORY:TAG, FILE.sif or oci:DIR:TAG",
        )
    return destination_text(recipe)


def _open(reference: str, recipe: Recipe, project: Project) -> Image | SifImage:
    """Return the image on this machine; one in a registry is downloaded into the cache."""
    if is_reference(reference):
        return pull_reference(reference, project.work, recipe.root)[1]
    try:
        return open_image(reference, project.work, architecture=recipe.architecture)
    except UsageError as e:
        raise UsageError(f"--ab: {e.message}", _FORMS) from None


def _side_of_job(name: str, reference: str, recipe: Recipe, project: Project) -> Side:
    runtime = runtime_of(recipe)
    in_registry = is_reference(reference) and not reference.startswith("oci:")
    if runtime.is_own:
        artifact = _open(reference, recipe, project)
        return Side(name, artifact.digest, artifact, _in_layout(project, recipe, artifact))
    if in_registry and not (runtime.runs_sif and recipe.format == "sif"):
        pinned = pinned_reference(recipe, project.work, image=reference)
        kind = "docker://" if runtime.runs_sif else ""
        return Side(name, pinned.partition("@")[2], reference=f"{kind}{pinned}")
    if runtime.runs_sif:
        artifact = _open(reference, recipe, project)
        if isinstance(artifact, SifImage):
            return Side(name, artifact.digest, artifact, str(artifact.path.absolute()))
        raise UsageError(
            f"jobs of {recipe.name} run SIFs, and {reference} is an OCI image on this machine",
            f"convert it: builder convert {reference} FILE.sif",
        )
    raise UsageError(
        f"jobs of {recipe.name} run images from a registry, "
        f"and {reference} is on this machine only",
        f"push it: builder publish {recipe.name} --no-tags",
    )


def _in_layout(project: Project, recipe: Recipe, artifact: Image | SifImage) -> str:
    """Return the name by which builder itself runs an image in a job, in ``dist/``.

    :func:`run_sides` puts it there.
    """
    if isinstance(artifact, SifImage):
        raise UsageError(
            f"jobs of {recipe.name} run the image with builder itself, "
            "which finds no SIF by its digest",
            "leave out --on slurm, and start the command on a node",
        )
    return f"oci:{project.layout.absolute()}@{artifact.digest}"
