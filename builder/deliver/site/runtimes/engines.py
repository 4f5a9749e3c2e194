"""Engines with a storage of OCI images: docker, podman and podman-hpc."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from builder.core.errors import UsageError
from builder.core.model import Image
from builder.core.workspace import Workspace

from ..containers import Container, Invocation
from ..shell import ShellText
from .runtime import ContainerRuntime

#: Options for the host's network.
_HOST_NETWORK = {"--network=host", "--net=host"}
#: As ``site.runtime.replaces``, for all sites. Engines take one network (docker 20.10, podman 4.3
#: and 5.8), and podman no size of /dev/shm beside the host's, which docker ignores.
_REPLACES = {"--network=host": ("--net=",), "--ipc=host": ("--shm-size=",)}


class EngineRuntime(ContainerRuntime):
    """An engine with its own storage, whose options are docker's."""

    env_option = "-e"
    loads = True

    def _invocation(self, container: Container) -> Invocation:
        request, settings = container.request, self.settings
        options: list[str] = [ShellText(option) for option in settings.options]
        options += self.gpu_options(request.gpus)
        if request.ranks:
            options += [ShellText(option) for option in settings.ranks]
        options = once([*options, *container.options], {**_REPLACES, **settings.replaces})
        words = ["--rm", *(["-it"] if request.interactive else []), *options]
        words += container.words("-v", "-e", "-w")
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


def once(words: Iterable[str], replaces: Mapping[str, Iterable[str]]) -> list[str]:
    """Return options, each once, and without those that another one replaces.

    Args:
        words: options, as ``--name=value``, or name and value as two words.
        replaces: see :attr:`builder.lock.config.site.Runtime.replaces`.
    """
    gone = tuple(option for word in words for option in replaces.get(word, ()))
    kept, rest = list[str](), iter(words)
    for word in rest:
        # without "=" it may be the value of the one before
        is_whole = word.startswith("--") and "=" in word
        if f"{word}=" in gone:
            next(rest, None)  # its value
        elif not word.startswith(gone) and not (is_whole and word in kept):
            kept.append(word)
    return kept


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
