"""Plugins of srun that start containers with enroot: CSCS's Container Engine, and pyxis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from builder.core.errors import UsageError
from builder.formats.oci.reference import is_digest

from ..containers import Container, Invocation
from ..job import ImageFile
from ..render import templates
from ..request import JobRequest
from ..shell import comma_separated, join, map_literal
from ..srun import (
    HOOK_VARIABLES,
    LOGIN_SHELL,
    NVIDIA,
    SrunContainer,
    engine_image,
)
from .runtime import ContainerRuntime


class SrunPlugin(ContainerRuntime):
    """A plugin of srun, which starts a container from a plain squashfs."""

    suffix = ".sqsh"

    def job_image(self, request: JobRequest) -> str:
        if "://" not in request.image and is_digest(request.image.partition("@")[2]):
            return f"docker://{request.image}"
        return super().job_image(request)

    def image_of_job(self, request: JobRequest) -> ImageFile:
        image = super().image_of_job(request)
        return replace(image, reference=engine_image(image.reference))

    def downloaded(self, image: str) -> tuple[str, str]:
        if "#" in image and image[0] not in "/.$":
            return "docker", image.replace("#", "/", 1)
        return super().downloaded(image)

    def _invocation(self, container: Container) -> Invocation:
        """Return the command in a container that srun starts."""
        early, own = self._early_variables(container)
        container, words = container.inside(own)
        # Some Slurms look for the first word on the host (LaunchParameters=test_exec,
        # https://github.com/NVIDIA/pyxis/issues/104).
        words = words or ["env"]
        command = container.command or self.recipe.cmd
        return Invocation((), tuple(words), "", command, self._srun(container, early))

    @abstractmethod
    def _srun(self, container: Container, early: Mapping[str, str]) -> SrunContainer:
        """Return the container for srun, with the variables that are set before it starts."""

    def _is_early(self, name: str, container: Container) -> bool:
        """Return whether a variable is set before srun starts the container."""
        return name.startswith(HOOK_VARIABLES)

    def _early_variables(self, container: Container) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables that are set before srun starts the container, and the others.

        The others precede the command, so that each process fills in its own values. Host variables
        pass into the container, unless the image sets them.
        """
        has_nvidia = self.recipe.gpu.vendor == "nvidia" and self.has_gpus(container.request.gpus)
        early, own = dict(NVIDIA) if has_nvidia else {}, dict[str, str]()
        for name, value in container.env.items():
            if value is not None:
                (early if self._is_early(name, container) else own)[name] = value
        return early, own


class Pyxis(SrunPlugin):
    """``srun --container-image=IMAGE``. What a site can configure is always named.

    pyxis has all options used here since 0.15.0 (2023-03-06).
    """

    def _srun(self, container: Container, early: Mapping[str, str]) -> SrunContainer:
        request = container.request
        options = [join("--container-image=", engine_image(request.image)), "--container-writable"]
        options += [f"--no-container-{name}" for name in ("mount-home", "remap-root", "entrypoint")]
        if words := [map_literal(bind.short_word, _mountable) for bind in container.binds]:
            options.append(join("--container-mounts=", comma_separated(words)))
        if request.workdir:
            options.append(join("--container-workdir=", request.workdir))
        # host variables that win over those of the image
        passed = [*early, *(name for name, value in container.env.items() if value is None)]
        if passed:
            options.append(f"--container-env={','.join(passed)}")
        return SrunContainer("pyxis", tuple(options), LOGIN_SHELL | dict(early))


def _mountable(path: str) -> str:
    """Return a path. Raises UsageError: pyxis cannot mount a folder of this name."""
    if set('"$`\\') & set(path):
        message = f"pyxis cannot mount {path}: in enroot, a mount is part of a shell script"
        raise UsageError(message, 'use a folder without " $ ` \\ in its name')
    return path


class ContainerEngine(SrunPlugin):
    """CSCS's Container Engine, ``srun --environment=FILE``; the file has the variables of the site."""

    def _is_early(self, name: str, container: Container) -> bool:
        return name in container.site_env or super()._is_early(name, container)

    def _srun(self, container: Container, early: Mapping[str, str]) -> SrunContainer:
        request, template = container.request, templates().get_template("edf.toml.j2")
        text = template.render(
            image=engine_image(request.image),
            workdir=request.workdir,
            mounts=container.binds,
            env=early,
            annotations=self.settings.annotations,
        )
        option, lines = join("--environment=", request.edf), tuple(text.rstrip("\n").split("\n"))
        return SrunContainer("the Container Engine", (option,), LOGIN_SHELL, request.edf, lines)
