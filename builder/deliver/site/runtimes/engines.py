"""Engines with a storage of OCI images: docker, podman and podman-hpc."""

from __future__ import annotations

from builder.core.errors import UsageError
from builder.core.model import Image
from builder.core.workspace import Workspace

from ..containers import Container, Invocation
from ..shell import ShellText
from .runtime import ContainerRuntime

#: Options for the host's network.
_HOST_NETWORK = {"--network=host", "--net=host"}


class EngineRuntime(ContainerRuntime):
    """An engine with its own storage, whose options are docker's."""

    env_option = "-e"
    loads = True

    def _invocation(self, container: Container) -> Invocation:
        request, settings = container.request, self.settings
        words = ["--rm"]
        if request.interactive:
            words.append("-it")
        words += [ShellText(option) for option in settings.options]
        words += self.gpu_options(request.gpus)
        if request.ranks:
            words += [ShellText(option) for option in settings.ranks]
        words += [*container.options, *container.words("-v", "-e", "-w")]
        program = (settings.command, "run")
        return Invocation(program, tuple(words), request.image, container.command)

    def stored_name(self, image_id: str) -> str:
        """Return the name by which all nodes find an image; empty: they have none of their own.

        Args:
            image_id: digest of the image's config.
        """
        return ""

    def load(self, image: Image, work: Workspace) -> str:
        """Put an image into the engine's storage unless it is there, and return its name there.

        Raises:
            RunnerError: the engine does not work.
        """
        from builder.build.run.podman import PodmanStorage

        return PodmanStorage(self.settings.command, work).keep(image, self.recipe.name)

    def check_server(self) -> None:
        if not _HOST_NETWORK & {*self.settings.options, *self.settings.ranks}:
            message = f"{self.recipe.site_title}: no browser reaches a server in the container"
            raise UsageError(message, "add --network=host to site.runtime.ranks in the recipe")


class DockerRuntime(EngineRuntime):
    """docker, through its API."""

    def load(self, image: Image, work: Workspace) -> str:
        from builder.build.run.docker import DockerRunner

        return DockerRunner(work).keep(image, self.recipe.name)


class PodmanHpcRuntime(EngineRuntime):
    """podman-hpc of NERSC, with a second storage, of migrated images, that all nodes see.

    Without ``--``, it takes ``--help``, ``--gpu`` and ``--`` of the command for its own (1.2.2).
    """

    migrates = True
    loads = False  # nodes do not see it
    separator = ("--",)

    def stored_name(self, image_id: str) -> str:
        from builder.build.run.podman import migrated_ids

        is_migrated = image_id in migrated_ids(self.settings.command)
        return image_id.partition(":")[2] if is_migrated else ""

    def load(self, image: Image, work: Workspace) -> str:
        return self.stored_name(image.config_descriptor.digest) or super().load(image, work)
