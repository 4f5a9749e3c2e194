"""The docker engine: a Dockerfile that installs the lock inside the image, built by a Docker engine through
its SDK.

The classic builder (Docker 20.10) is enough: two stages, no BuildKit, no network. The finished image is
exported; then config, smoke test and publishing are as with every engine.
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
from builder.engines.bundle import PLACE, InstallBundle, make_bundle
from builder.engines.prepare import InstallInputs, prepare_install
from builder.errors import ImageError
from builder.image.archive import docker_load
from builder.image.config import make_image, redacted
from builder.image.files import ENTRYPOINT
from builder.layers.entry import Entry
from builder.layers.tar import END, header, padding
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, canonical_json
from builder.net.mirrors import mirrored_base
from builder.oci.reference import Reference
from builder.progress import working
from builder.run.docker import docker_client, docker_errors, docker_problem
from builder.run.process import tail
from builder.store.files import CHUNK, require_space, space_errors
from builder.store.temporary import temporary_name
from builder.text import visible

_FILES = "files.tar.gz"
#: A user of a base's config: NAME, NUMBER, or one of them with a group.
_USER = re.compile(r"[\w.@+-]+(:[\w.@+-]+)?")
#: A name of a base's variable that ENV takes as it is.
_VARIABLE = re.compile(r"[\w.%()-]+", re.ASCII)
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")


class Docker:
    """Builds OCI images with a Docker engine."""

    name = "docker"
    formats = frozenset({"oci"})
    repeatable = False

    def available(self) -> str | None:
        return docker_problem()

    def build(self, request: BuildRequest) -> BuildResult:
        clock = Clock()
        inputs = prepare_install(request, clock)
        bundle = make_bundle(request, inputs)
        clock.mark("bundle")

        def error(message: str) -> ImageError:
            return ImageError(
                f"the Docker engine failed on target {request.recipe.name}: {message}",
                "see the engine's log and its disk space, or build with --engine layered",
            )

        tag = f"builder-build:{secrets.token_hex(8)}"
        with docker_errors(error), docker_client() as client:
            text = dockerfile(request, inputs, provide_base(request, inputs.base, client))
            try:
                _build(request, client, _context(text, inputs, bundle), tag)
                clock.mark("docker build")
                exported = _export(request, client, tag, inputs.base)
            finally:
                _remove_image(client, tag)
        image = make_image(
            exported,
            [],
            recipe=request.recipe,
            lock=request.lock,
            env=inputs.activation,
            annotations={**request.recipe.annotations, **request.annotations},
            epoch=request.created,
        )
        clock.mark("export")
        return BuildResult(
            request.recipe,
            request.lock,
            inputs.locked_base,
            image,
            engine=self.name,
            notes=(f"{bundle.installer} installed the conda packages, pip the wheels",),
            timings=clock.timings,
            definition=("Dockerfile", text),
        )


# the Dockerfile ---------------------------------------------------------------------------------------------


def dockerfile(request: BuildRequest, inputs: InstallInputs, base: str) -> str:
    """Returns the Dockerfile: one stage installs the lock from the bundle, the other copies the environment
    from it.

    ``base`` is the base image's name in the Docker engine.

    Raises:
        ImageError: The base's config has a value that would become an instruction of its own.
    """
    recipe = request.recipe
    prefix = recipe.conda.prefix
    entrypoint = (ENTRYPOINT,) if recipe.entrypoint is None else recipe.entrypoint
    user = _user(inputs.base)
    lines = [
        f"# Target {recipe.name}, written by builder for its docker engine (docs/engines.md).",
        f"# bundle/ holds the locked archives, {_FILES} the entry point, smoke test, lock and files.",
        "# No step needs a network.",
        f"# base: {inputs.base.reference} {inputs.base.digest}",
        f"FROM {base} AS install",
        "USER root",
        f"COPY bundle/ {PLACE}/",
        f"RUN {_words(['/bin/sh', f'{PLACE}/install.sh'])}",
        "",
        f"FROM {base}",
        "USER root",
        f"RUN {_words(['rm', '-rf', prefix])}",
        f"COPY --from=install {_words([prefix, prefix])}",
        f"ADD {_FILES} /",
    ]
    lines += [f"ENV {_variable(name, inputs.base)}={_quoted(value)}" for name, value in inputs.env.items()]
    lines += [f"LABEL {_quoted(name)}={_quoted(value)}" for name, value in redacted(recipe.labels).items()]
    lines.append("WORKDIR /" if recipe.workdir == "/" else f"WORKDIR {_quoted(recipe.workdir)}")
    if user:
        lines.append(f"USER {user}")
    if entrypoint:
        lines.append(f"ENTRYPOINT {_words(entrypoint)}")
    if recipe.cmd:
        lines.append(f"CMD {_words(recipe.cmd)}")
    return "\n".join(lines) + "\n"


def _user(base: BaseImage) -> str:
    """The user of the base. The classic builder has no quotes for USER, and runs the base's ONBUILD."""
    config = base.config.get("config") or {}
    if config.get("OnBuild"):
        raise _refused(base, f"ONBUILD instructions ({config['OnBuild']!r})")
    user = config.get("User") or ""
    if user and not (isinstance(user, str) and _USER.fullmatch(user)):
        raise _refused(base, f"the user {user!r}")
    return user


def _variable(name: str, base: BaseImage) -> str:
    if not _VARIABLE.fullmatch(name):
        raise _refused(base, f"a variable with the name {name!r}")
    return name


def _refused(base: BaseImage, what: str) -> ImageError:
    return ImageError(
        f"the base {base.reference} has {what}, which cannot be in a Dockerfile",
        "use another base, or build with --engine layered, which runs nothing",
    )


def _words(words: Iterable[str]) -> str:
    """A command in exec form."""
    return json.dumps(list(words))


def _quoted(value: str) -> str:
    """A value for ENV and LABEL, in which nothing is expanded."""
    text = visible(re.sub(r'(["\\$])', r"\\\1", value).replace("\n", "\\n"))
    return f'"{text}"'


# in the Docker engine ---------------------------------------------------------------------------------------


def provide_base(request: BuildRequest, base: BaseImage, client: Any) -> str:
    """Makes the base available in the Docker engine and returns its name there.

    The engine pulls the base of a registry by digest. Any other base is loaded, and one with OS packages.
    """
    import docker

    reference = mirrored_base(request.settings, base.reference)
    if reference.startswith("docker://") and not base.added:
        name = f"{Reference.parse(reference).name}@{base.digest}"
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.get(name)
            return name
        with working(request.reporter, f"docker pulls {name}"):
            client.images.pull(name)
        return name

    config = canonical_json(base.config)
    described = Descriptor.of(OCI_CONFIG, config)
    digest = described.digest if base.added else base.digest
    tag = f"builder-base:{digest.partition(':')[2][:12]}"
    with contextlib.suppress(docker.errors.ImageNotFound):
        if client.images.get(tag).id == described.digest:
            return tag
    image = Image(base.layers, config, described, b"", Descriptor(OCI_MANIFEST, base.digest, 0))
    with working(request.reporter, f"loading the base {base.reference} into docker as {tag}"):
        docker_load(image, tag, client)
    return tag


def _build(request: BuildRequest, client: Any, context: Iterator[bytes], tag: str) -> None:
    """Sends the context and reports the steps.

    Raises:
        ImageError: A step failed; the message has the step and its last lines of output.
    """
    step = "the first step"
    lines: list[str] = []  # output of this step
    answers = client.api.build(
        fileobj=context,
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
                step, lines = f"step {match[1]} of {match[2]}, {match[3]}", []
                request.reporter.note(f"docker: {line}")
            elif line.strip():
                lines.append(line)
        if "error" in answer:
            lines.append(str(answer["error"]))
            raise ImageError(
                f"docker build of target {request.recipe.name} failed at {step}:\n{tail(lines)}",
                "the lines above are the engine's; --engine layered installs without running anything",
            )


def _context(dockerfile: str, inputs: InstallInputs, bundle: InstallBundle) -> Iterator[bytes]:
    """The build context as a tar stream. The archives are read from the cache and not copied."""
    assert inputs.files.path is not None
    files: dict[str, bytes | Path] = {"Dockerfile": dockerfile.encode(), _FILES: inputs.files.path}
    files |= {f"bundle/{name}": content for name, content in bundle.files.items()}
    return _tar(files)


def _tar(files: Mapping[str, bytes | Path]) -> Iterator[bytes]:
    for name, content in files.items():
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        yield header(Entry(name, "file", 0o644, size), 0)
        if isinstance(content, bytes):
            yield content
        else:
            with content.open("rb") as f:
                while data := f.read(CHUNK):
                    yield data
        if pad := padding(size):  # an empty chunk would end the request
            yield bytes(pad)
    yield END


def _export(request: BuildRequest, client: Any, tag: str, base: BaseImage) -> BaseImage:
    """The finished image, on the base's own layers: the engine does not store how those were compressed."""
    settings, store, architecture = request.settings, request.store, request.recipe.architecture
    image = client.images.get(tag)
    size = int(image.attrs.get("Size") or 0)
    for folder in (settings.tmpdir, settings.cache):
        require_space(folder, size, f"exporting target {request.recipe.name} from docker")
    archive = settings.tmpdir / temporary_name()
    try:
        with space_errors(settings.tmpdir):
            archive.parent.mkdir(parents=True, exist_ok=True)
            with archive.open("wb") as out:
                for data in image.save(chunk_size=CHUNK, named=tag):
                    out.write(data)
        locked = resolve_base(f"docker-archive:{archive}", architecture, settings, store)
        exported = open_base(locked, architecture, settings, store)
    finally:
        archive.unlink(missing_ok=True)
    base_layers = {layer.diff_id: layer for layer in base.layers}
    layers = tuple(base_layers.get(layer.diff_id, layer) for layer in exported.layers)
    # make_image sets the recipe's part of the config for all engines, so the Dockerfile's version of it is
    # dropped
    config = {**exported.config, "config": base.config.get("config") or {}}
    return BaseImage(base.reference, base.digest, config, layers)


def _remove_image(client: Any, tag: str) -> None:
    """Removes the tag but not the layers, which are the engine's build cache. Errors are ignored."""
    import docker
    import requests

    with contextlib.suppress(docker.errors.DockerException, requests.exceptions.RequestException):
        client.images.remove(tag, noprune=True)
