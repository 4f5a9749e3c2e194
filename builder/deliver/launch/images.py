"""Which image of a target runs here and in jobs, and where it comes from."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from builder.build.wheels.own import changed_folders
from builder.core.errors import BuilderError, ImageError, UsageError
from builder.core.model import Image, SifImage
from builder.core.store.files import sha256_file
from builder.deliver.project import Project, StoredImage
from builder.deliver.publishing.pull import pinned_reference
from builder.deliver.pulled import Pull, recorded_pull
from builder.deliver.site.request import JobRequest
from builder.deliver.site.runtimes.engines import EngineRuntime
from builder.deliver.site.runtimes.runtime import ContainerRuntime
from builder.deliver.site.runtimes.table import runtime_of
from builder.lock.config.policy import has_policy
from builder.lock.config.recipe import Recipe

log = logging.getLogger(__name__)

#: What Apptainer and enroot download. Apptainer accepts ``oras:`` without ``//``, and enroot reads
#: ``HOST#REPOSITORY``.
_DOWNLOADED = ("docker", "oras", "library", "shub", "http", "https")


def target_images(project: Project, recipe: Recipe) -> TargetImages:
    """Return the images of a target, as the runtime of its site finds them."""
    families = {"engine": EngineImages, "own": OwnImages}
    kind = families.get(recipe.site.runtime.family, TargetImages)
    return kind(project, recipe, runtime_of(recipe))


@dataclass(frozen=True)
class TargetImages:
    """The images of a target: in ``dist/``, in the storage of engines, at its site and in its
    registry. This class finds files for the site's runtime: SIFs, and squashfs for plugins of srun.
    """

    project: Project
    recipe: Recipe
    runtime: ContainerRuntime

    def to_print(self) -> str:
        """Return the image for a command line that is printed: nothing is loaded."""
        return self.runtime.image()

    def to_run(self, *, may_build: bool = True) -> tuple[str, str]:
        """Return the image that was pulled or built, or else the published one, and its origin.

        The image is a reference, an id in the engine's storage, a SIF's path, or a digest. It is
        empty for builder's own runner, which finds the image by the target. The origin is for a
        note; empty: no note.

        Args:
            may_build: whether an image in ``dist/`` that was built here is built again when the
                project's own code has changed.

        Raises:
            UsageError: there is no image on this machine, and the recipe names no repository.
            RunnerError: the engine does not work.
        """
        placed = self.project.layout / f"{self.recipe.name}{self.runtime.suffix}"
        # Build and pull put it into dist/ on a machine that is not the site's.
        is_elsewhere = self.runtime.site_file("", os.environ) is None
        name = str(placed) if is_elsewhere and placed.is_file() else self.runtime.image()
        self._note_changed_code()
        return name, str(name)

    def in_job(self, request: JobRequest, *, submit: bool, interactive: bool = False) -> JobRequest:
        """Return the request with the digest of the image that the job runs, as far as it is known.

        That is the image that was pulled into an engine; else, unless it is interactive, the one that
        the registry has now under the tag, so that two jobs of one study run one image. Without an
        answer of the registry the job runs the tag, with a warning. If the project has a policy, the
        image is verified, and the job runs its digest, or is an error.
        """
        if not request.image:
            self._note_changed_code()
        return replace(request, image=self.accepted(request.image))

    def accepted(self, image: str) -> str:
        """Return an image that a user names; one of a registry by its digest, if the project has a
        policy.

        Files are returned unchanged: ``builder pull`` has verified them.

        Raises:
            VerifyError: the policy refuses it.
            UsageError: it comes from elsewhere, so it cannot be verified.
        """
        if not image or not has_policy(self.recipe.root):
            return image
        scheme, name = self.runtime.downloaded(image)
        if scheme not in _DOWNLOADED:
            return image
        if scheme not in ("docker", "oras"):
            hint = "name a file, or an image of a registry: docker:// or oras://"
            raise UsageError(f"{image} cannot be verified", hint)
        return f"{scheme}://{self._pinned(name)}"

    def _pinned(self, image: str) -> str:
        return pinned_reference(self.recipe, self.project.work, image=image)

    # the project's own code -----------------------------------------------------------------------

    def _current(self, *, may_build: bool) -> StoredImage | None:
        """Return the image in ``dist/``; one that was built here has the code of today."""
        stored = self.project.stored(self.recipe)
        is_own = stored is not None and not stored.pulled_from
        if is_own and may_build and self.project.lock_of_own_code(self.recipe):
            self.project.place(self.project.build(self.recipe))
            stored = self.project.stored(self.recipe)
        return stored

    def _note_changed_code(self) -> None:
        """Note that the image has older code than the project folder, if it has."""
        lock = self.project.lock_of_own_code(self.recipe)
        if lock and changed_folders(self.recipe, lock, self.project.work):
            name = self.recipe.name
            self.project.work.reporter.note(
                f"{name}: your code has changed, and the image has the code of its lock; for a new image: "
                f"builder build {name} && builder publish {name}"
            )

    def _origin(self, stored: StoredImage) -> str:
        """Return the source of an image in ``dist/``, with the command that replaces it."""
        digest, again = stored.image.digest[:19], f"builder build {self.recipe.name}"
        if stored.pulled_from:
            return f"pulled from {stored.pulled_from} ({digest}); to build it here: {again}"
        return f"built here ({digest}); after a change of the recipe: {again}"


class EngineImages(TargetImages):
    """The images of a target for docker, podman and podman-hpc, which have a storage of their own."""

    runtime: EngineRuntime

    def to_print(self) -> str:
        pulled = self._engine_pull()
        return pulled.image if pulled else super().to_print()

    def to_run(self, *, may_build: bool = True) -> tuple[str, str]:
        """Return the image, see :meth:`TargetImages.to_run`; one in ``dist/`` is loaded."""
        program = self.recipe.site.runtime.command
        if shutil.which(program) is None:  # running it is an error that names the program
            return self.recipe.name, ""
        if pulled := self._engine_pull():
            origin = f"pulled into {pulled.engine}: {pulled.image}"
            return self.runtime.stored_name(pulled.image_id) or pulled.image, origin
        if stored := self._current(may_build=may_build):
            return self.runtime.load(stored.image, self.project.work), self._origin(stored)
        self._note_changed_code()
        name = self.runtime.image()
        if has_policy(self.recipe.root):
            name = self._pinned(name)
        return name, f"{name}, as {program} finds it"

    def in_job(self, request: JobRequest, *, submit: bool, interactive: bool = False) -> JobRequest:
        if not request.image:
            self._note_changed_code()
        reporter, verifies = self.project.work.reporter, has_policy(self.recipe.root)
        if not request.image and (pulled := self._engine_pull()):
            if verifies:
                self._pinned(pulled.image)
            reporter.note(f"the job runs {pulled.image}, pulled into {pulled.engine}")
            return replace(request, image=pulled.image, image_id=pulled.image_id)
        is_tag = self.runtime.image_of_job(request).movable and not interactive
        if not (is_tag or submit or verifies):
            return request
        try:
            image = self._pinned(request.image)
        except BuilderError as e:
            if verifies:
                raise
            reporter.warn(f"the job runs a tag, not a digest: {e.message}")
            return request
        reporter.note(f"the job runs {image}")
        return replace(request, image=image)

    def accepted(self, image: str) -> str:
        return self._pinned(image) if image and has_policy(self.recipe.root) else image

    def _engine_pull(self) -> Pull | None:
        """Return the last pull, if it was into an engine."""
        pull = recorded_pull(self.project.layout, self.recipe.name)
        return pull if pull and pull.engine else None


class OwnImages(TargetImages):
    """The images of a target for builder's own runner, which finds them by the target."""

    def to_print(self) -> str:
        return ""

    def to_run(self, *, may_build: bool = True) -> tuple[str, str]:
        return "", ""

    def in_job(self, request: JobRequest, *, submit: bool, interactive: bool = False) -> JobRequest:
        if stored := self._current(may_build=True):
            is_open = submit and not request.image
            return replace(request, image=stored.image.digest) if is_open else request
        if not self._sif.is_file():
            self.project.work.reporter.warn(
                f"no image of {self.recipe.name} in {self._sif.parent} yet, and a job does not build one: "
                f"before it starts, {self._how_to_get()}"
            )
        return request

    def accepted(self, image: str) -> str:
        return image

    def own(self, wanted: str = "", *, may_build: bool = True) -> tuple[Image | SifImage, str]:
        """Return the image itself, and where it comes from.

        It is the one that was pulled, if no build came after the pull; else it is built here.

        Args:
            wanted: the digest that it must have; empty: any.
            may_build: False in a job: the image must be in ``dist/``.

        Raises:
            ImageError: the image has another digest, or must not be built and is not in ``dist/``.
        """
        stored = self.project.stored(self.recipe)
        if stored and wanted in ("", stored.image.digest) and (stored.pulled_from or not may_build):
            then = f"built here ({stored.image.digest[:19]}), with the code of that build"
            return stored.image, self._origin(stored) if stored.pulled_from else then
        if not may_build:
            artifact, origin = self._placed(stored)
        else:
            log.info("%s: building, because its last image was not pulled", self.recipe.name)
            artifact = self.project.build(self.recipe).artifact
            origin = f"built here ({artifact.digest[:19]})"
        if wanted not in ("", artifact.digest):
            problem = f"{self.recipe.name} is {artifact.digest} on this machine, not {wanted}"
            hint = "a file of the recipe, or the lock, has changed since: start again"
            raise ImageError(problem, hint)
        return artifact, origin

    @property
    def _sif(self) -> Path:
        """The target's SIF in ``dist/``, which may not exist."""
        return self.project.layout / f"{self.recipe.name}.sif"

    def _placed(self, stored: StoredImage | None) -> tuple[Image | SifImage, str]:
        """Return the SIF in ``dist/``, else the image there.

        Raises:
            ImageError: there is none.
        """
        recipe, path = self.recipe, self._sif
        if recipe.format == "sif" and path.is_file():
            size = path.stat().st_size
            return SifImage(path, sha256_file(path), size, recipe.architecture), str(path)
        if stored is None:
            raise ImageError(
                f"no image of {recipe.name} in {path.parent}, and a job does not build one",
                f"on the login node: {self._how_to_get()}",
            )
        return stored.image, self._origin(stored)

    def _how_to_get(self) -> str:
        """Return the commands that put the target's image into ``dist/``."""
        return f"builder build {self.recipe.name}, or builder pull {self.recipe.name}"
