"""Images in one file: OCI archives, and what ``docker load`` reads. The same image gives the same bytes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import ImageError, RunnerError
from builder.layers.entry import Entry
from builder.layers.tar import END, header, padding
from builder.model import OCI_INDEX, OCI_LAYER_ZSTD, Descriptor, Image, canonical_json
from builder.oci.layout import OCI_LAYOUT, index_with
from builder.oci.manifest import require_layers
from builder.store.files import CHUNK, space_errors
from builder.trees.inflate import inflate

if TYPE_CHECKING:
    import docker


@dataclass(frozen=True, slots=True)
class _Inflated:
    """A zstd layer that is to be written uncompressed."""

    blob: Path


Member = tuple[str, bytes | Path | _Inflated, int]


def write_oci_archive(image: Image, file: Path, tag: str | None) -> None:
    """Writes an OCI layout as one tar (``oci-archive:`` of skopeo and podman).

    Raises:
        ImageError: a base layer is not on this machine.
        SpaceError: the disk is full.
    """
    require_layers(image, f"write {file}")
    index = index_with(
        {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}, image.manifest_descriptor, tag
    )
    members: list[Member] = [
        ("oci-layout", OCI_LAYOUT, len(OCI_LAYOUT)),
        _inline("index.json", canonical_json(index)),
    ]
    blobs: dict[str, bytes | Path] = {
        image.manifest_descriptor.digest: image.manifest,
        image.config_descriptor.digest: image.config,
    }
    sizes = {d.digest: d.size for d in (image.manifest_descriptor, image.config_descriptor)}
    for layer in image.layers:
        blobs[layer.descriptor.digest] = _layer_file(layer.path, layer.descriptor)
        sizes[layer.descriptor.digest] = layer.descriptor.size
    members += [(f"blobs/sha256/{_hex(d)}", blobs[d], sizes[d]) for d in sorted(blobs)]
    _write(members, file)


def write_docker_archive(image: Image, file: Path, repo_tag: str) -> None:
    """Writes what ``docker load`` and ``docker-archive:`` read.

    gzip layers stay as they are; zstd layers are written uncompressed, because Docker 20.10 cannot load them.

    Args:
        image: the image.
        file: the archive.
        repo_tag: its name in the engine: ``repository:tag``.

    Raises:
        ImageError: a base layer is not on this machine.
        SpaceError: the disk is full.
    """
    require_layers(image, f"write {file}")
    _write(_docker_members(image, repo_tag), file)


def docker_load(image: Image, repo_tag: str, client: docker.DockerClient | str | None = None) -> str:
    """Loads an image into a Docker engine, streaming; nothing is written to disk here.

    Args:
        image: the image.
        repo_tag: its name in the engine: ``repository:tag``.
        client: a client of the docker SDK, or an engine's address (``unix://...``); None: the environment's (DOCKER_HOST).

    Returns:
        The engine's id of the image.

    Raises:
        ImageError: a base layer is not on this machine, or the engine refused the image.
        RunnerError: no engine answers.
    """
    import docker
    import requests

    require_layers(image, f"load {repo_tag}")
    own = None
    try:
        if client is None or isinstance(client, str):
            own = (
                docker.DockerClient(base_url=client, timeout=600) if client else docker.from_env(timeout=600)
            )
        engine: docker.DockerClient = own or client  # type: ignore[assignment]
        engine.ping()
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as e:
        raise RunnerError(
            f"no Docker engine answers: {e}", "start it, or set DOCKER_HOST; an archive needs no engine"
        ) from None
    try:
        answers = engine.api.load_image(_stream(_docker_members(image, repo_tag)), quiet=True)  # type: ignore[no-untyped-call]
        for answer in answers:
            if isinstance(answer, dict) and "error" in answer:
                raise ImageError(
                    f"the Docker engine refused {repo_tag}: {answer['error']}", "look at the engine's log"
                )
        return str(engine.images.get(repo_tag).id)
    except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
        raise ImageError(
            f"the Docker engine did not load {repo_tag}: {e}", "look at the engine's log and free space"
        ) from None
    finally:
        if own is not None:
            own.close()


def _docker_members(image: Image, repo_tag: str) -> list[Member]:
    # Named by the blob's digest, in a folder each: what docker save wrote until 25. The engine inflates by magic number.
    names = [f"{_hex(layer.descriptor.digest)}/layer.tar" for layer in image.layers]
    config = f"{_hex(image.config_descriptor.digest)}.json"
    listing = [{"Config": config, "RepoTags": [repo_tag], "Layers": names}]
    layers: dict[str, Member] = {}
    for name, layer in zip(names, image.layers, strict=True):
        blob, size = _layer_file(layer.path, layer.descriptor), layer.descriptor.size
        if layer.descriptor.media_type == OCI_LAYER_ZSTD:
            layers[name] = (name, _Inflated(blob), layer.unpacked or sum(map(len, inflate(blob))))
        else:
            layers[name] = (name, blob, size)
    return [
        _inline("manifest.json", canonical_json(listing)),
        _inline(config, image.config),
        *layers.values(),
    ]


def _inline(name: str, data: bytes) -> Member:
    return name, data, len(data)


def _hex(digest: str) -> str:
    return digest.partition(":")[2]


def _layer_file(path: Path | None, descriptor: Descriptor) -> Path:
    if path is None or not path.is_file() or path.stat().st_size != descriptor.size:
        raise ImageError(f"the layer {descriptor.digest} is gone from the cache, or damaged", "build again")
    return path


def _stream(members: list[Member]) -> Iterator[bytes]:
    for name, content, size in members:
        yield header(Entry(name, "file", 0o644, size), 0)
        if isinstance(content, bytes):
            yield content
        else:
            left = size
            for data in inflate(content.blob) if isinstance(content, _Inflated) else _chunks(content):
                left -= len(data)
                yield data
            if left:
                raise ImageError(f"{content} is not what it was when the image was made", "build again")
        if pad := padding(size):
            yield bytes(pad)
    yield END


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as f:
        while data := f.read(CHUNK):
            yield data


def _write(members: list[Member], file: Path) -> None:
    temporary = file.parent / f".{file.name}.{secrets.token_hex(6)}.tmp"
    with space_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise ImageError(f"{file} is a folder", "name a file for the archive")
        try:
            with temporary.open("wb") as out:
                for data in _stream(members):
                    out.write(data)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
