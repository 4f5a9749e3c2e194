"""The docker engine: a Dockerfile that installs the lock inside the image, built by a Docker engine through its SDK.

The classic builder (Docker 20.10) is enough: two stages, no BuildKit, no network. The image that comes out is exported and goes
on as any other: the same config, smoke test and publishing.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.bases.image import BaseImage
from builder.bases.resolve import open_base, resolve_base
from builder.engines.base import BuildRequest, BuildResult, Clock
from builder.engines.kit import PLACE, Kit, make_kit
from builder.engines.prepare import Prepared, prepare
from builder.errors import ImageError
from builder.image.archive import docker_load
from builder.image.config import make_image
from builder.image.files import ENTRYPOINT
from builder.layers.entry import Entry
from builder.layers.tar import END, header, padding
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, LockedBase, canonical_json
from builder.net.mirrors import mirrored_base
from builder.oci.reference import Reference
from builder.run.docker import DockerRunner, _client
from builder.run.process import tail
from builder.store.files import CHUNK, require_space, space_errors
from builder.store.temporary import temporary_name

_FILES = "files.tar.gz"
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")


class Docker:
    """Builds OCI images with a Docker engine."""

    name = "docker"
    formats = frozenset({"oci"})
    repeatable = False

    def available(self) -> str | None:
        """Whether an engine answers where DOCKER_HOST, DOCKER_CONTEXT or docker's configuration say."""
        from builder.progress import QUIET
        from builder.settings import Settings
        from builder.store.blobs import Store

        settings = Settings.from_environment()
        return DockerRunner(settings, Store(settings.cache), QUIET).available()

    def build(self, request: BuildRequest) -> BuildResult:
        import docker
        import requests

        clock = Clock()
        prepared = prepare(request, clock)
        kit = make_kit(request, prepared)
        clock.mark("kit")
        tag = f"builder-build:{secrets.token_hex(8)}"
        try:
            with _client() as client:
                text = dockerfile(request, prepared, _base(request, prepared.base, client))
                try:
                    _build(request, client, text, kit, prepared, tag)
                    clock.mark("docker build")
                    exported = _export(request, client, tag, prepared.base)
                finally:
                    with contextlib.suppress(
                        docker.errors.DockerException, requests.exceptions.RequestException
                    ):
                        client.images.remove(tag, noprune=True)
        except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
            raise ImageError(
                f"the Docker engine gave up on target {request.recipe.name}: {getattr(e, 'explanation', None) or e}",
                "see the engine's log and free space, or build with --engine layered",
            ) from None
        image = make_image(
            exported,
            [],
            recipe=request.recipe,
            lock=request.lock,
            env=prepared.activation,
            annotations={**request.recipe.annotations, **request.annotations},
            epoch=request.settings.epoch,
        )
        clock.mark("export")
        return BuildResult(
            request.recipe,
            request.lock,
            LockedBase(prepared.base.reference, prepared.base.digest),
            image,
            engine=self.name,
            notes=(f"installed by {kit.program}, wheels by pip",),
            timings=clock.timings,
            definition=("Dockerfile", text),
        )


def dockerfile(request: BuildRequest, prepared: Prepared, base: str) -> str:
    """The Dockerfile: a stage that installs the lock from the kit, and the image that takes the environment from it.

    ``base`` is the image's name in the engine.
    """
    recipe = request.recipe
    prefix = recipe.conda.prefix
    entrypoint = (ENTRYPOINT,) if recipe.entrypoint is None else recipe.entrypoint
    user = (prepared.base.config.get("config") or {}).get("User") or ""
    lines = [
        f"# Target {recipe.name}, made by builder for its docker engine (docs/engines.md). The context holds the locked archives",
        f"# in kit/, and in {_FILES} the entry point, smoke test, lock and the recipe's files. Nothing needs a network.",
        f"# base: {prepared.base.reference} {prepared.base.digest}",
        f"FROM {base} AS install",
        "USER root",
        f"COPY kit/ {PLACE}/",
        f"RUN {_words(['/bin/sh', f'{PLACE}/install.sh'])}",
        "",
        f"FROM {base}",
        "USER root",
        f"RUN {_words(['rm', '-rf', prefix])}",
        f"COPY --from=install {_words([prefix, prefix])}",
        f"ADD {_FILES} /",
        *(f"ENV {name}={_quoted(value)}" for name, value in prepared.env.items()),
        *(f"LABEL {_quoted(name)}={_quoted(value)}" for name, value in recipe.labels.items()),
        f"WORKDIR {_quoted(recipe.workdir)}" if recipe.workdir != "/" else "WORKDIR /",
        *([f"USER {user}"] if user else []),
        *([f"ENTRYPOINT {_words(entrypoint)}"] if entrypoint else []),
        *([f"CMD {_words(recipe.cmd)}"] if recipe.cmd else []),
    ]
    return "\n".join(lines) + "\n"


def _words(words: Iterable[str]) -> str:
    return json.dumps(list(words))


def _quoted(value: str) -> str:
    """A value as ENV and LABEL take it: nothing in it is expanded."""
    text = re.sub(r'(["\\$])', r"\\\1", value).replace("\n", "\\n")
    return f'"{text}"'


def _base(request: BuildRequest, base: BaseImage, client: Any) -> str:
    """The base's name in the engine: a registry's by its digest, for the engine to pull; any other is loaded."""
    import docker

    reference = mirrored_base(request.settings, base.reference)
    if reference.startswith("docker://"):
        name = f"{Reference.parse(reference).name}@{base.digest}"
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.get(name)
            return name
        request.reporter.note(f"docker pulls {name}")
        client.images.pull(name)
        return name
    config = canonical_json(base.config)
    tag = f"builder-base:{base.digest.partition(':')[2][:12]}"
    described = Descriptor.of(OCI_CONFIG, config)
    with contextlib.suppress(docker.errors.ImageNotFound):
        if client.images.get(tag).id == described.digest:
            return tag
    request.reporter.note(f"loading the base {base.reference} into docker as {tag}")
    docker_load(
        Image(base.layers, config, described, b"", Descriptor(OCI_MANIFEST, base.digest, 0)), tag, client
    )
    return tag


def _build(request: BuildRequest, client: Any, text: str, kit: Kit, prepared: Prepared, tag: str) -> None:
    """Sends the context and follows the steps.

    Raises:
        ImageError: a step failed; the message names it and holds its last lines.
    """
    assert prepared.files.path is not None
    members: dict[str, bytes | Path] = {"Dockerfile": text.encode(), _FILES: prepared.files.path}
    members |= {f"kit/{name}": content for name, content in kit.members.items()}
    reporter = request.reporter
    step = "the first step"
    said: list[str] = []
    answers = client.api.build(
        fileobj=_context(members),
        custom_context=True,
        tag=tag,
        rm=True,
        forcerm=True,
        network_mode="none",
        decode=True,
    )
    for answer in answers:
        for line in str(answer.get("stream") or "").splitlines():
            if match := _STEP.match(line):
                step, said = f"step {match[1]} of {match[2]}, {match[3]}", []
                reporter.note(f"docker: {line}")
            elif line.strip():
                said.append(line)
        if "error" in answer:
            lines = [*said, str(answer["error"])]
            raise ImageError(
                f"docker build of target {request.recipe.name} failed at {step}:\n{tail(lines)}",
                "the lines above are the engine's; build with --engine layered to install without running anything",
            )


def _context(members: Mapping[str, bytes | Path]) -> Iterator[bytes]:
    """The build context's tar, as a stream: archives go from the cache to the engine, without another copy."""
    for name, content in members.items():
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        yield header(Entry(name, "file", 0o644, size), 0)
        if isinstance(content, bytes):
            yield content
        else:
            with content.open("rb") as f:
                while data := f.read(CHUNK):
                    yield data
        if pad := padding(size):
            yield bytes(pad)
    yield END


def _export(request: BuildRequest, client: Any, tag: str, base: BaseImage) -> BaseImage:
    """The finished image out of the engine, on the base's own layers: the engine forgets how those were compressed."""
    r = request
    image = client.images.get(tag)
    size = int(image.attrs.get("Size") or 0)
    for folder in (r.settings.tmpdir, r.settings.cache):
        require_space(folder, size, f"exporting target {r.recipe.name} from docker")
    archive = r.settings.tmpdir / temporary_name()
    try:
        with space_errors(r.settings.tmpdir):
            archive.parent.mkdir(parents=True, exist_ok=True)
            with archive.open("wb") as out:
                for data in image.save(chunk_size=CHUNK, named=tag):
                    out.write(data)
        locked = resolve_base(f"docker-archive:{archive}", r.recipe.architecture, r.settings, r.store)
        made = open_base(locked, r.recipe.architecture, r.settings, r.store)
    finally:
        archive.unlink(missing_ok=True)
    own = {layer.diff_id: layer for layer in base.layers}
    layers = tuple(own.get(layer.diff_id, layer) for layer in made.layers)
    # what the Dockerfile sets is set once more from the recipe, by the code that makes every image's config
    config = {**made.config, "config": base.config.get("config") or {}}
    return BaseImage(base.reference, base.digest, config, layers)
