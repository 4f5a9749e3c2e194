"""Pulling: the published image of a target, when it is not the one that is here already.

An OCI image has the same manifest digest in a registry, in an OCI layout and in podman's storage, and a SIF's artifact names the
sha256 of its bytes: asking the registry for a tag's digest tells whether there is anything to fetch.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from builder.config.recipe import Recipe
from builder.errors import ImageError, RegistryError, RunnerError, UsageError
from builder.model import Descriptor, Image
from builder.oci.layout import list_tags, read_blob, read_index, read_layout, write_layout
from builder.oci.manifest import INDEXES, choose, choose_platform, parse_json, parse_manifest
from builder.oci.reference import is_digest, is_tag
from builder.progress import QUIET, Reporter
from builder.registry.auth import Credentials
from builder.registry.client import RegistryClient
from builder.registry.oras import copy_sif, pull_sif, sif_layer
from builder.registry.pull import pull_image
from builder.run.process import execute
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import space_errors, write_atomic

Engine = Literal["podman-hpc", "podman", "docker"]


@dataclass(frozen=True)
class Pulled:
    """What a pull did. ``digest`` is the manifest's for an OCI image, the SIF's own for a SIF; ``place`` is where it is now."""

    target: str
    reference: str
    digest: str
    changed: bool
    place: str


class Source(Protocol):
    """Where published images lie."""

    name: str

    def resolve(self, tag: str) -> Descriptor | None:
        """What a tag or digest names; None when there is no such thing."""

    def manifest(self, descriptor: Descriptor) -> bytes:
        """A manifest or index, checked."""

    def image(self, digest: str, architecture: str) -> Image:
        """An image with all its layers."""

    def sif(self, layer: Descriptor, output: Path) -> bool:
        """Brings a SIF to its place; whether anything was transferred."""


class RegistrySource:
    """A repository of a registry."""

    def __init__(
        self, client: RegistryClient, repository: str, store: Store, reporter: Reporter = QUIET
    ) -> None:
        self.client = client
        self.repository = repository
        self.store = store
        self.reporter = reporter
        self.name = f"{client.host}/{repository}"

    def resolve(self, tag: str) -> Descriptor | None:
        return self.client.head_manifest(self.repository, tag)

    def manifest(self, descriptor: Descriptor) -> bytes:
        if (path := self.store.get(descriptor.digest)) is not None:
            return path.read_bytes()
        data, _, _ = self.client.get_manifest(self.repository, descriptor.digest)
        self.store.add(data)
        return data

    def image(self, digest: str, architecture: str) -> Image:
        return pull_image(self.client, self.repository, digest, architecture, self.store, self.reporter)

    def sif(self, layer: Descriptor, output: Path) -> bool:
        return pull_sif(self.client, self.repository, layer, output, self.store, self.reporter)


class LayoutSource:
    """An OCI layout that was published to."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.name = f"oci:{folder}"

    def resolve(self, tag: str) -> Descriptor | None:
        entries = read_index(self.folder)["manifests"]
        known = {*list_tags(self.folder), *(str(e["digest"]) for e in entries)}
        return choose(entries, tag, str(self.folder)) if tag in known else None

    def manifest(self, descriptor: Descriptor) -> bytes:
        return read_blob(self.folder, descriptor)

    def image(self, digest: str, architecture: str) -> Image:
        image = read_layout(self.folder, digest, architecture)
        _check_layers(image, self.folder, self.store)
        return image

    def sif(self, layer: Descriptor, output: Path) -> bool:
        return copy_sif(self.folder / "blobs" / layer.digest.replace(":", "/"), layer, output, self.store)


def pull(
    recipe: Recipe,
    source: Source,
    tag: str,
    output: Path,
    store: Store,
    *,
    if_changed: bool = False,
) -> Pulled:
    """Fetches the image that a tag names: a SIF into the file ``output``, an OCI image into the layout ``output``.

    Args:
        recipe: says whether it is a SIF, and for which processor.
        source: where it was published.
        tag: which one; or a digest.
        output: a file for a SIF, the folder of an OCI layout otherwise.
        store: gets the blobs, and remembers what was checked.
        if_changed: asks for the digest only, and leaves what is here when it is that, whole. Without, an OCI image is written
            into the layout anew; blobs that are here are not fetched in either case.

    Raises:
        RegistryError: no such tag, or the registry does not give it.
        ImageError: it is not what the target runs, or is damaged.
        HashMismatch, SpaceError.
    """
    where = _named(source, tag)
    described = _manifest_of(recipe, source, tag, where)
    manifest = source.manifest(described)
    layer = sif_layer(manifest, described, where)
    if recipe.format == "sif":
        if layer is None:
            raise ImageError(
                f"{where} is an OCI image, and target {recipe.name} runs a SIF",
                "publish the target's SIF there; or name what Apptainer makes of the image: apptainer pull docker://...",
            )
        changed = source.sif(layer, output)
        return Pulled(recipe.name, where, layer.digest, changed, str(output))
    if layer is not None:
        raise ImageError(
            f"{where} is a SIF, and target {recipe.name} runs an OCI image",
            "correct the repository or the tag",
        )
    here = _in_layout(output, recipe.name, described.digest, store)
    if not here or not if_changed:
        write_layout(source.image(described.digest, recipe.architecture), output, recipe.name, store)
    return Pulled(recipe.name, where, described.digest, not here, f"oci:{output}:{recipe.name}")


def _named(source: Source, tag: str) -> str:
    if not is_tag(tag) and not is_digest(tag):
        raise UsageError(f"{tag!r} is neither a tag nor a digest", "write latest, 26.11 or sha256:...")
    return f"{source.name}{'@' if is_digest(tag) else ':'}{tag}"


def _manifest_of(recipe: Recipe, source: Source, tag: str, where: str) -> Descriptor:
    described = source.resolve(tag)
    if described is None:
        raise RegistryError(
            f"there is no {where}", f"publish it (builder publish {recipe.name}), or name another --tag"
        )
    for _ in range(4):
        if described.media_type not in INDEXES:
            return described
        index = parse_json(source.manifest(described), f"the image index {where}")
        described = choose_platform(index, recipe.architecture, where)
    raise ImageError(f"{where}: image indexes point at each other", "the image is damaged: publish it again")


# container engines ----------------------------------------------------------------------------------------------------


def pull_into(
    engine: Engine,
    recipe: Recipe,
    source: RegistrySource,
    tag: str,
    settings: Settings,
    *,
    if_changed: bool = False,
) -> Pulled:
    """Has a container engine pull the image that a tag names, with the same credentials; podman-hpc squashes it as it does.

    Args:
        engine: whose storage is to hold it.
        recipe, source, tag: see :func:`pull`.
        settings: where a file with the credentials may be for the time being.
        if_changed: leaves the engine alone when its image of this name is the registry's.

    Raises:
        RunnerError: the engine is not there, or cannot pull.
        RegistryError, ImageError: see :func:`pull`.
    """
    where = _named(source, tag)
    if recipe.format == "sif":
        raise UsageError(
            f"target {recipe.name} runs a SIF, which {engine} does not", "leave out --into: the SIF is a file"
        )
    if shutil.which(engine) is None and engine != "docker":
        raise RunnerError(
            f"{engine} is not installed here", "pull on a machine that has it, or leave out --into"
        )
    described = _manifest_of(recipe, source, tag, where)
    manifest = parse_manifest(source.manifest(described), described, where)
    if sif_layer(source.manifest(described), described, where) is not None:
        raise ImageError(
            f"{where} is a SIF, and target {recipe.name} runs an OCI image",
            "correct the repository or the tag",
        )
    wanted = {
        described.digest,
        str(manifest["config"]["digest"]),
    }  # engines name an image by one or the other
    here = bool(_known(engine, where) & wanted)
    if not here or not if_changed:
        _engine_pull(engine, source, tag, settings)
        if not _known(engine, where) & wanted:
            raise RegistryError(
                f"{engine} pulled another image than {where} was ({described.digest})",
                "the tag has moved: pull again",
            )
    return Pulled(recipe.name, where, described.digest, not here, f"{engine}:{where}")


def _known(engine: Engine, name: str) -> set[str]:
    """The id and the digests of an engine's image; empty when it has none of this name."""
    if engine == "docker":
        import docker

        with _docker() as client:
            try:
                value = client.images.get(name).attrs
            except docker.errors.ImageNotFound:
                return set()
    else:
        done = execute([engine, "image", "inspect", name])
        if done.returncode:
            return set()
        try:
            value = json.loads(done.stdout)[0]
        except (ValueError, LookupError):
            raise RunnerError(
                f"{engine} image inspect does not answer in JSON", f"is this {engine} in order?"
            ) from None
    image_id = str(value.get("Id", ""))
    digests = {str(d).rpartition("@")[2] for d in value.get("RepoDigests") or ()}
    return {image_id if ":" in image_id else f"sha256:{image_id}", *digests}


def _engine_pull(engine: Engine, source: RegistrySource, tag: str, settings: Settings) -> None:
    credentials = source.client.credentials(source.repository)
    name = _named(source, tag)
    source.reporter.note(f"{engine} pulls {name}")
    if engine == "docker":
        auth = (
            {"username": credentials.username, "password": credentials.password}
            if credentials.username
            else None
        )
        with _docker() as client:
            client.images.pull(source.name, tag, auth_config=auth)
        return
    command = [engine, "pull", *(("--tls-verify=false",) if source.client.plain_http else ()), name]
    with _auth_file(source.client.host, credentials, settings) as env:
        done = execute(command, env={**os.environ, **env})
    if done.returncode:
        raise RunnerError(
            f"{engine} could not pull {name}: {done.stderr.strip()[-500:]}",
            f"see whether {engine} works: {engine} info",
        )


@contextmanager
def _docker() -> Iterator[Any]:
    import docker
    import requests

    from builder.run.docker import docker_client

    try:
        with docker_client() as client:
            yield client
    except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
        said = getattr(e, "explanation", None) or e
        raise RunnerError(
            f"docker could not pull the image: {said}", "is the engine running, and may you use it?"
        ) from None


@contextmanager
def _auth_file(host: str, credentials: Credentials, settings: Settings) -> Iterator[dict[str, str]]:
    """Variables that let podman log in as we do: a file that only this user can read, for as long as it takes."""
    if not credentials.username:
        yield {}
        return
    with space_errors(settings.tmpdir):
        settings.tmpdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="auth-", dir=settings.tmpdir) as folder:
        path = Path(folder) / "auth.json"
        write_atomic(
            path,
            json.dumps({"auths": {host: {"auth": credentials.basic.removeprefix("Basic ")}}}).encode(),
            0o600,
        )
        yield {"REGISTRY_AUTH_FILE": str(path)}


# what is here ---------------------------------------------------------------------------------------------------------


def _in_layout(folder: Path, tag: str, digest: str, store: Store) -> bool:
    """Whether a layout holds this image under the tag, with all its layers as they should be."""
    try:
        if list_tags(folder).get(tag) != digest:
            return False
        _check_layers(read_layout(folder, tag), folder, store)
    except ImageError:
        return False
    return True


def _check_layers(image: Image, folder: Path, store: Store) -> None:
    for layer in image.layers:
        assert layer.path is not None
        if not store.verify(layer.path, layer.descriptor.digest):
            raise ImageError(
                f"{layer.path} is not what its name says", f"{folder} is damaged: publish or pull again"
            )
