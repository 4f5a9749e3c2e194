"""Which image ``builder run TARGET`` and ``builder job TARGET`` run, and where it comes from."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.errors import BuilderError, ImageError, UsageError
from builder.model import SifImage
from builder.oci.reference import is_digest

if TYPE_CHECKING:
    from builder.cli.context import Context
    from builder.config.recipe import Recipe
    from builder.model import Image
    from builder.project import StoredImage
    from builder.site.pulled import EnginePull
    from builder.site.request import JobRequest


@dataclass(frozen=True, slots=True)
class RunImage:
    """The image for a site's runtime."""

    name: str
    """A reference, an id in the engine's storage, a SIF's path, or a digest; empty: builder's own
    runner finds the image by the target."""
    origin: str
    """Where it comes from, for a note; empty: nothing to say."""


def chosen_image(recipe: Recipe, image: str, digest: str) -> RunImage | None:
    """Return the image that the options name; None if they name none.

    Raises:
        UsageError: ``--digest`` has another form, or the site's runtime takes none.
    """
    from builder.site.shell import from_user

    if digest and (image or recipe.site.runtime.kind != "userns"):
        raise UsageError(
            f"--digest is for builder's own runtime; {recipe.name} runs with {recipe.site.runtime.kind}",
            "name the image: --image REPOSITORY@sha256:...",
        )
    if digest and not is_digest(digest):
        raise UsageError(f"--digest {digest}: not a digest", "write --digest sha256:...")
    name = digest or (from_user(image) if image else "")
    return RunImage(name, "") if name else None


def printed_image(context: Context, recipe: Recipe) -> RunImage:
    """Return the image for a command line that is printed: nothing is loaded."""
    from builder.site.images import image_reference
    from builder.site.pulled import recorded_pull

    runtime = recipe.site.runtime
    if runtime.kind == "userns":
        return RunImage("", "")
    pulled = recorded_pull(context.project.layout, recipe.name) if runtime.is_engine else None
    return RunImage(pulled.image if pulled else image_reference(recipe), "")


def image_to_run(context: Context, recipe: Recipe) -> RunImage:
    """Return the image that was pulled or built, or else the published one, by its tag.

    For docker, podman and podman-hpc an image in ``dist/`` is loaded into the engine.

    Raises:
        UsageError: there is no image on this machine, and the recipe names no repository.
        RunnerError: the engine does not work.
    """
    from builder.site.images import image_reference, site_sif
    from builder.site.pulled import recorded_pull

    runtime = recipe.site.runtime
    if runtime.kind == "userns":
        return RunImage("", "")
    if runtime.image_suffix:
        placed = context.project.layout / f"{recipe.name}{runtime.image_suffix}"
        if site_sif(recipe, "", os.environ) is None and placed.is_file():
            # where build and pull put it on a machine that is not the site's
            return RunImage(str(placed), str(placed))
        name = image_reference(recipe)
        return RunImage(name, str(name))
    if shutil.which(runtime.command) is None:  # running it is an error that says so
        return printed_image(context, recipe)
    pulled = recorded_pull(context.project.layout, recipe.name)
    if pulled is not None:
        return RunImage(_in_engine(recipe, pulled), f"pulled into {pulled.engine}: {pulled.image}")
    stored = context.project.stored(recipe)
    if stored is not None:
        return RunImage(_loaded(context, recipe, stored.image), origin_of(recipe, stored))
    name = image_reference(recipe)
    return RunImage(name, f"{name}, as {runtime.command} finds it")


def origin_of(recipe: Recipe, stored: StoredImage) -> str:
    """Return where an image in ``dist/`` comes from, with the command that replaces it."""
    digest = stored.image.digest[:19]
    again = f"builder build {recipe.name}"
    if stored.pulled_from:
        return f"pulled from {stored.pulled_from} ({digest}); to build it here: {again}"
    return f"built here ({digest}); after a change of the recipe: {again}"


def _in_engine(recipe: Recipe, pulled: EnginePull) -> str:
    """Return what the site's engine calls an image that was pulled into it."""
    from builder.run.podman import migrated_ids

    # An image that podman-hpc had migrated before has its earlier name there.
    if recipe.site.runtime.kind == "podman-hpc" and pulled.image_id in migrated_ids(
        recipe.site.runtime.command
    ):
        return pulled.image_id.partition(":")[2]
    return pulled.image


def _loaded(context: Context, recipe: Recipe, image: Image) -> str:
    """Return the id of an image in the storage of the site's engine."""
    from builder.run.docker import DockerRunner
    from builder.run.podman import PodmanStorage, migrated_ids

    runtime, project = recipe.site.runtime, context.project
    if runtime.kind == "docker":
        return DockerRunner(project.settings, project.store, context.output).keep(
            image, recipe.name
        )
    config = image.config_descriptor.digest
    if runtime.kind == "podman-hpc" and config in migrated_ids(runtime.command):
        return config.partition(":")[2]
    storage = PodmanStorage(runtime.command, project.settings, project.store, context.output)
    return storage.keep(image, recipe.name)


# builder's own runner ---------------------------------------------------------------------------------------


def own_image(
    context: Context, recipe: Recipe, wanted: str, *, may_build: bool = True
) -> tuple[Image | SifImage, str]:
    """Return the image for builder's own runner, and where it comes from.

    It is the one that was pulled, if no build came after the pull; else it is built here.

    Args:
        context: the project.
        recipe: the target.
        wanted: the digest that it must have; empty: any.
        may_build: False in a job: the image must be in ``dist/``.

    Raises:
        ImageError: the image has another digest, or must not be built and is not in ``dist/``.
    """
    project = context.project
    stored = project.stored(recipe)
    if (
        stored is not None
        and wanted in ("", stored.image.digest)
        and (stored.pulled_from or not may_build)
    ):
        return stored.image, origin_of(recipe, stored)
    if not may_build:
        return _placed_sif(context, recipe, wanted)
    result = project.build(recipe)
    if wanted and wanted != result.digest:
        raise _other_digest(recipe, result.digest, wanted)
    return result.artifact, f"built here ({result.digest[:19]})"


def _placed_sif(context: Context, recipe: Recipe, wanted: str) -> tuple[SifImage, str]:
    """Return the SIF in ``dist/``.

    Raises:
        ImageError: there is none, or it has another digest.
    """
    from builder.store.files import sha256_file

    path = context.project.layout / f"{recipe.name}.sif"
    stored = context.project.stored(recipe)
    if recipe.format != "sif" or not path.is_file():
        if wanted and stored is not None:
            raise _other_digest(recipe, stored.image.digest, wanted)
        raise ImageError(
            f"no image of {recipe.name} in {context.project.layout}, and a job does not build one",
            f"on the login node: {missing_image_hint(recipe)}",
        )
    digest = sha256_file(path)
    if wanted not in ("", digest):
        raise _other_digest(recipe, digest, wanted)
    return SifImage(path, digest, path.stat().st_size, recipe.architecture), str(path)


def _other_digest(recipe: Recipe, found: str, wanted: str) -> ImageError:
    return ImageError(
        f"{recipe.name} is {found} on this machine, not {wanted}",
        "a file of the recipe, or the lock, has changed since: start again",
    )


def missing_image_hint(recipe: Recipe) -> str:
    """Return the commands that put a target's image into ``dist/``."""
    return f"builder build {recipe.name}, or builder pull {recipe.name}"


# jobs -------------------------------------------------------------------------------------------------------


def job_with_image(
    context: Context, recipe: Recipe, request: JobRequest, *, submit: bool
) -> JobRequest:
    """Return the request with the digest of the image that the job runs, as far as it is known.

    That is the image that was pulled into an engine; with ``--submit`` the one that the registry
    has now under the tag. Without an answer of the registry the job runs the tag, with a warning.

    Args:
        context: the project.
        recipe: the target.
        request: the job.
        submit: whether the job is submitted.
    """
    if recipe.site.runtime.kind == "userns":
        return _with_own_image(context, recipe, request, submit=submit)
    if recipe.site.runtime.is_engine:
        return _with_digest(context, recipe, request, submit=submit)
    return request  # SIFs, and files of the Container Engine


def _with_own_image(
    context: Context, recipe: Recipe, request: JobRequest, *, submit: bool
) -> JobRequest:
    stored = context.project.stored(recipe)
    if stored is not None:
        return (
            replace(request, image=stored.image.digest) if submit and not request.image else request
        )
    if not (context.project.layout / f"{recipe.name}.sif").is_file():
        context.output.warn(
            f"no image of {recipe.name} in {context.project.layout} yet, and a job does not build one: "
            f"before it starts, {missing_image_hint(recipe)}"
        )
    return request


def _with_digest(
    context: Context, recipe: Recipe, request: JobRequest, *, submit: bool
) -> JobRequest:
    from builder.publishing.pull import pinned_reference
    from builder.site.pulled import recorded_pull

    pulled = None if request.image else recorded_pull(context.project.layout, recipe.name)
    if pulled is not None:
        context.output.note(f"the job runs {pulled.image}, pulled into {pulled.engine}")
        return replace(request, image=pulled.image, image_id=pulled.image_id)
    if not submit:
        return request
    project = context.project
    try:
        image = pinned_reference(
            recipe, project.settings, project.store, image=request.image, reporter=context.output
        )
    except BuilderError as e:
        context.output.warn(f"the job runs a tag, not a digest: {e.message}")
        return request
    context.output.note(f"the job runs {image}")
    return replace(request, image=image)
