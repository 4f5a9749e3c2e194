"""Images in one file, as ``docker load`` reads it.

The same image results in the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.errors import ImageError
from builder.core.model import OCI_LAYER_ZSTD, Image, Layer, canonical_json
from builder.core.store.durable import durable_file
from builder.core.store.files import CHUNK, OUTPUT_HINT, space_errors
from builder.formats.layers.entry import Entry
from builder.formats.layers.tar import END, header, padding
from builder.formats.oci.manifest import require_layers
from builder.formats.trees.inflate import inflate

if TYPE_CHECKING:
    import docker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive."""

    name: str
    content: bytes | Path
    size: int
    """Bytes in the archive."""
    digest: str = ""
    """``sha256:...`` of the bytes in the archive, which are compared; empty for a content in
    memory.
    """
    inflate: bool = False
    """Whether the content is a zstd layer that is written uncompressed."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in pieces."""
        if isinstance(self.content, bytes):
            yield self.content
        elif self.inflate:
            yield from inflate(self.content)
        else:
            with self.content.open("rb") as f:
                while data := f.read(CHUNK):
                    yield data


def write_docker_archive(image: Image, file: Path, repo_tag: str) -> None:
    """Write what ``docker load`` and ``docker-archive:`` read.

    gzip layers are copied. zstd layers are written uncompressed, because Docker 20.10 cannot load
    them.

    Args:
        image: the image.
        file: the archive. It is written under a temporary name, and renamed.
        repo_tag: the image's name in the engine: ``repository:tag``.

    Raises:
        ImageError: a base layer is not on this machine.
        SpaceError: the disk is full.
    """
    require_layers(image, f"write {file}")
    if file.is_dir():
        raise ImageError(f"{file} is a folder", "name a file for the archive")
    files = _docker_files(image, repo_tag)
    log.info("writing the archive %s: %d files", file, len(files))
    with (
        space_errors(file.parent, OUTPUT_HINT),
        durable_file(file) as temporary,
        temporary.open("wb") as out,
    ):
        out.writelines(tar_stream(files))


def docker_load(image: Image, repo_tag: str, client: docker.DockerClient) -> str:
    """Load an image into a Docker engine. The archive is streamed; nothing is written to disk here.

    Args:
        image: the image.
        repo_tag: the image's name in the engine: ``repository:tag``.
        client: a client of the docker SDK.

    Returns:
        The image's id in the engine.

    Raises:
        ImageError: a base layer is not on this machine, or the engine refused the image.
    """
    import docker
    import requests

    require_layers(image, f"load {repo_tag}")
    log.info("loading %s into the Docker engine: %d layers", repo_tag, len(image.layers))
    try:
        stream = tar_stream(_docker_files(image, repo_tag))
        answers = client.api.load_image(stream, quiet=True)  # type: ignore[no-untyped-call]
        for answer in answers:
            if isinstance(answer, dict) and "error" in answer:
                what = f"the Docker engine refused {repo_tag}: {answer['error']}"
                raise ImageError(what, "read the engine's log")
        return str(client.images.get(repo_tag).id)
    except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
        hint = "read the engine's log, and check its free disk space"
        raise ImageError(f"the Docker engine did not load {repo_tag}: {e}", hint) from None


def _docker_files(image: Image, repo_tag: str) -> list[ArchiveFile]:
    """Return the files of an archive as ``docker save`` wrote it until version 25.

    A layer's name is a folder named by the blob's digest. The engine recognizes the compression by
    magic number.
    """
    config = f"{_hex(image.config_descriptor.digest)}.json"
    names = [f"{_hex(layer.descriptor.digest)}/layer.tar" for layer in image.layers]
    listing = canonical_json([{"Config": config, "RepoTags": [repo_tag], "Layers": names}])
    layers: dict[str, ArchiveFile] = {}  # a layer that the image has twice is written once
    for name, layer in zip(names, image.layers, strict=True):
        blob = layer_file(layer)
        if layer.descriptor.media_type == OCI_LAYER_ZSTD:
            size = layer.unpacked or sum(map(len, inflate(blob)))
            layers[name] = ArchiveFile(name, blob, size, layer.diff_id, inflate=True)
        else:
            layers[name] = ArchiveFile(name, blob, layer.descriptor.size, layer.descriptor.digest)
    return [inline("manifest.json", listing), inline(config, image.config), *layers.values()]


def inline(name: str, data: bytes) -> ArchiveFile:
    """Return a file whose content is in memory."""
    return ArchiveFile(name, data, len(data))


def _hex(digest: str) -> str:
    return digest.partition(":")[2]


def layer_file(layer: Layer) -> Path:
    """Return the file of a layer on this machine.

    Raises:
        ImageError: It is not there, or damaged.
    """
    path, descriptor = layer.path, layer.descriptor
    if path is None or not path.is_file() or path.stat().st_size != descriptor.size:
        what = f"the layer {descriptor.digest} is missing in the cache, or damaged"
        raise ImageError(what, "build again")
    return path


def tar_stream(files: list[ArchiveFile]) -> Iterator[bytes]:
    """Yield the archive, a tar with the time 1970-01-01."""
    for file in files:
        yield header(Entry(file.name, "file", 0o644, file.size), 0)
        left, digest = file.size, hashlib.sha256()
        for data in file.chunks():
            left -= len(data)
            if file.digest:
                digest.update(data)
            yield data
        if left or file.digest not in ("", f"sha256:{digest.hexdigest()}"):
            raise ImageError(
                f"{file.content!s} is corrupt: its content does not match {file.digest or 'its size'}",
                "remove it (the whole cache: builder cache prune --all), and run the command again",
            )
        if pad := padding(file.size):
            yield bytes(pad)
    yield END
