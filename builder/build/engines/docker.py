"""The docker engine: a Dockerfile that adds the layers of builder, built through docker's SDK.

The classic builder (Docker 20.10) is enough: no BuildKit, no network. The finished image is
exported; then config, smoke test and publishing are as with every engine.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from builder.build.bases.image import BaseImage
from builder.build.bases.resolve import open_base, resolve_base
from builder.build.image.archive import ArchiveFile, docker_load, inline, layer_file, tar_stream
from builder.build.run.docker import DockerStorage, docker_client, docker_errors, docker_problem
from builder.build.run.process import tail
from builder.core.datafiles import script
from builder.core.errors import ImageError
from builder.core.model import Layer
from builder.core.progress import working
from builder.core.store.files import CHUNK, require_space, space_errors
from builder.core.store.temporary import temporary_folder
from builder.core.text import one_line
from builder.formats.layers.build import make_layer

from .base import BuildRequest, BuildResult, Clock
from .layered import Stack, history, make_layers
from .prepare import image_of_build


class Docker:
    """Builds OCI images with a Docker engine."""

    name = "docker"
    formats = frozenset({"oci"})
    repeatable = False

    def available(self) -> str | None:
        return docker_problem()

    def build(self, request: BuildRequest) -> BuildResult:
        clock = Clock()
        # with a whole base, and gzip layers: Docker 20.10 does not unpack zstd
        gzip = request.recipe.layers.model_copy(update={"compression": "gzip"})
        recipe = request.recipe.model_copy(update={"layers": gzip})
        request = replace(
            request, recipe=recipe, options=replace(request.options, download_base=True)
        )
        stack = make_layers(request, clock)
        base = stack.base
        layers = _added_layers(request, stack)

        def error(message: str) -> ImageError:
            hint = "see the engine's log and its disk space, or build with --engine layered"
            return ImageError(f"the Docker engine failed on target {recipe.name}: {message}", hint)

        tag = f"builder-build:{secrets.token_hex(8)}"
        with docker_errors(error), docker_client() as client:
            name = provide_base(request, base, client)
            text = dockerfile(base, name, recipe.conda.prefix, layers)
            try:
                run_steps(request, client, _context(text, layers), tag)
                clock.mark("docker build")
                exported = _export(request, client, tag, base)
            finally:
                # the layers stay: they are the engine's build cache
                with contextlib.suppress(ImageError), docker_errors(error):
                    client.images.remove(tag, noprune=True)
        image = image_of_build(request, exported, [], stack.packages.activation.env)
        clock.mark("export")
        result = stack.result(image, clock)
        return replace(result, engine=self.name, definition=("Dockerfile", text))


# the Dockerfile -----------------------------------------------------------------------------------


def _added_layers(request: BuildRequest, stack: Stack) -> dict[str, Layer]:
    """Return the layers above the base by their names in the context, from the bottom up."""
    own = make_layer([history(stack.files)], "conda's history", request.work)
    layers = enumerate((own, *stack.layers))
    return {f"layers/{number:03}.tar.gz": layer for number, layer in layers}


def dockerfile(base: BaseImage, name: str, prefix: str, layers: Mapping[str, Layer]) -> str:
    """Return the Dockerfile. The config of the image is set after the build, as with every engine.

    Args:
        base: the base image.
        name: its name in the Docker engine.
        prefix: the folder of the environment, which replaces that of the base.
        layers: by their names in the context.

    Raises:
        ImageError: The base has instructions that Docker would run.
    """
    triggers = (base.config.get("config") or {}).get("OnBuild")
    if triggers:
        raise ImageError(
            f"the base {base.reference} has ONBUILD instructions ({triggers!r}), "
            "which docker build runs",
            "use another base, or build with --engine layered, which runs nothing",
        )
    values = {
        "base": f"{base.reference} {base.digest}",
        "name": name,
        "remove": json.dumps(["rm", "-rf", prefix]),
        "layers": "".join(f"# {one_line(x.title)}\nADD {file} /\n" for file, x in layers.items()),
    }
    return script(__file__, "dockerfile.txt", **values)


# in the Docker engine -----------------------------------------------------------------------------


def provide_base(request: BuildRequest, base: BaseImage, client: Any) -> str:
    """Load the base into the Docker engine if needed, and return its name there."""
    image, storage = base.image(), DockerStorage(client)
    tag = f"builder-base:{image.config_descriptor.digest.partition(':')[2][:12]}"
    if storage.id_of(tag) != storage.image_id(image):
        task = f"loading the base {base.reference} into docker as {tag}"
        with working(request.work.reporter, task):
            docker_load(image, tag, client)
    return tag


def run_steps(request: BuildRequest, client: Any, context: Iterator[bytes], tag: str) -> None:
    """Send the context and report the steps.

    Raises:
        ImageError: A step failed; the message has the last lines of output.
    """
    lines: list[str] = []
    options = {"custom_context": True, "rm": True, "forcerm": True, "network_mode": "none"}
    answers = client.api.build(fileobj=context, tag=tag, decode=True, **options)
    for answer in answers:
        lines += str(answer.get("stream") or "").splitlines()
        if lines and lines[-1].startswith("Step "):
            request.work.reporter.note(f"docker: {lines[-1]}")
        if "error" in answer:
            lines.append(str(answer["error"]))
            raise ImageError(
                f"docker build of target {request.recipe.name} failed:\n{tail(lines)}",
                "the lines above are the engine's; "
                "--engine layered installs without running anything",
            )


def _context(dockerfile: str, layers: Mapping[str, Layer]) -> Iterator[bytes]:
    """Return the build context as a tar stream, with the layers as they are in the cache."""
    files = [inline("Dockerfile", dockerfile.encode())]
    for name, layer in layers.items():
        described = layer.descriptor
        files.append(ArchiveFile(name, layer_file(layer), described.size, described.digest))
    return tar_stream(files)


def _export(request: BuildRequest, client: Any, tag: str, base: BaseImage) -> BaseImage:
    """Return the finished image, on the base's own layers: the engine compresses them anew."""
    settings = request.work.settings
    image = client.images.get(tag)
    size = int(image.attrs.get("Size") or 0)
    for place in (settings.tmpdir, settings.cache):
        require_space(place, size, f"exporting target {request.recipe.name} from docker")
    with space_errors(settings.tmpdir), temporary_folder(settings.tmpdir, 0o700) as folder:
        archive = folder / "image.tar"
        with archive.open("wb") as out:
            out.writelines(image.save(chunk_size=CHUNK, named=tag))
        locked = resolve_base(f"docker-archive:{archive}", request.recipe, request.work)
        exported = open_base(locked, request.recipe, request.work)
    base_layers = {layer.diff_id: layer for layer in base.layers}
    layers = tuple(base_layers.get(layer.diff_id, layer) for layer in exported.layers)
    # make_image sets the recipe's part of the config for all engines, so the Dockerfile's version
    # of it is dropped
    config = {**exported.config, "config": base.config.get("config") or {}}
    return BaseImage(base.reference, base.digest, config, layers)
