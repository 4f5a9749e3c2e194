"""builder's own runtime, ``userns``: jobs run builder itself."""

from __future__ import annotations

from pathlib import Path

from builder.formats.oci.reference import is_digest

from ..containers import Container, Invocation
from ..job import ImageFile
from ..request import JobRequest
from .runtime import ContainerRuntime


class OwnRuntime(ContainerRuntime):
    """``builder run TARGET``, which finds the image by the target."""

    is_own = True
    separator = ("--",)

    def job_image(self, request: JobRequest) -> str:
        return request.image

    def image_of_job(self, request: JobRequest) -> ImageFile:
        return ImageFile("", is_file=False, image_id=request.image)

    def image_of_build(self, digest: str, sif: Path | None, reference: str) -> str:
        return digest  # which builder run compares with its build

    def _invocation(self, container: Container) -> Invocation:
        request, root = container.request, self.recipe.root.absolute()
        # Called from elsewhere, the target is found by its project.
        project = [] if Path.cwd().is_relative_to(root) else ["--project", str(root)]
        words = ["--digest", request.image] if is_digest(request.image) else []
        if not request.may_build:
            words.append("--no-build")
        words += container.words("--bind", "--env", "--workdir")
        program = ("builder", *project, "run", self.recipe.name)
        return Invocation(program, tuple(words), "", container.command)
