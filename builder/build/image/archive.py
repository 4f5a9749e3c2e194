"""Images in one file, as ``docker load`` reads it.

The same image results in the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.errors import ImageError
from builder.core.model import OCI_LAYER_ZSTD, Image, Layer, canonical_json
from builder.core.store.durable import durable_file
from builder.core.store.files import OUTPUT_HINT, pieces, space_errors
from builder.formats.layers.entry import Entry
from builder.formats.layers.tar import END, header, padding
from builder.formats.oci.layout import EMPTY_INDEX, OCI_LAYOUT, blob_path
from builder.formats.oci.manifest import REF_NAME, require_layers
from builder.formats.oci.reference import Reference
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
                yield from pieces(f)


def write_docker_archive(image: Image, file: Path, repo_tag: str) -> None:
    """Write what ``docker load`` and ``docker-archive:`` read.

    gzip layers are copied. zstd layers are written uncompressed, because Docker 20.10 cannot load
    them. Without zstd layers the archive is an OCI layout, too, so readers keep the manifest.

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
        files = _docker_files(image, repo_tag, keep_zstd=has_containerd_store(client))
        answers = client.api.load_image(tar_stream(files), quiet=True)  # type: ignore[no-untyped-call]
        for answer in answers:
            problem = answer.get("error", "")
            if "Error unpacking" in answer.get("stream", ""):
                # containerd's store (Docker 28.5) stores what it cannot unpack, and runs no container
                problem = answer["stream"].strip()
                client.images.remove(repo_tag)
            if problem:
                what = f"the Docker engine refused {repo_tag}: {problem}"
                raise ImageError(what, "read the engine's log, and check its free disk space")
        return str(client.images.get(repo_tag).id)
    except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
        hint = "read the engine's log, and check its free disk space"
        raise ImageError(f"the Docker engine did not load {repo_tag}: {e}", hint) from None


def has_containerd_store(client: docker.DockerClient) -> bool:
    """Return whether a Docker engine has containerd's image store, the default of Docker 29.

    There, the id of an image is the digest of its manifest. With the older graph drivers, it is
    that of its config.
    """
    driver = ["driver-type", "io.containerd.snapshotter.v1"]
    return driver in (client.info().get("DriverStatus") or ())


def _docker_files(image: Image, repo_tag: str, *, keep_zstd: bool = False) -> list[ArchiveFile]:
    """Return the files of an archive as ``docker save`` writes it since version 25.

    It is an OCI layout with Docker's ``manifest.json``. Graph drivers and older readers read
    ``manifest.json``, containerd's image store and podman read ``index.json``. An engine recognizes
    the compression by magic number.

    Args:
        image: the image.
        repo_tag: its name.
        keep_zstd: whether the reader takes zstd layers. Otherwise they are uncompressed, and the
            archive is no OCI layout: the manifest lists other layers.
    """
    layers = [_docker_layer(layer, keep_zstd=keep_zstd) for layer in image.layers]
    names = [layer.name for layer in layers]
    config = inline(_name(image.config_descriptor.digest), image.config)
    listing = canonical_json([{"Config": config.name, "RepoTags": [repo_tag], "Layers": names}])
    files = [inline("manifest.json", listing), config]
    if not any(layer.inflate for layer in layers):
        name = Reference.parse(repo_tag)
        notes = {"io.containerd.image.name": str(name), REF_NAME: name.tag or "latest"}
        entry = replace(image.manifest_descriptor, annotations=notes).to_json()
        index = canonical_json({**EMPTY_INDEX, "manifests": [entry]})
        files += [inline("oci-layout", OCI_LAYOUT), inline("index.json", index)]
        files.append(inline(_name(image.digest), image.manifest))
    # a layer that the image has twice is written once
    return [*files, *{layer.name: layer for layer in layers}.values()]


def _docker_layer(layer: Layer, *, keep_zstd: bool) -> ArchiveFile:
    """Return a layer as a file of an archive, see :func:`_docker_files`."""
    described, blob = layer.descriptor, layer_file(layer)
    if keep_zstd or described.media_type != OCI_LAYER_ZSTD:
        return ArchiveFile(_name(described.digest), blob, described.size, described.digest)
    size = layer.unpacked or sum(map(len, inflate(blob)))
    return ArchiveFile(_name(layer.diff_id), blob, size, layer.diff_id, inflate=True)


def _name(digest: str) -> str:
    return str(blob_path(Path(), digest))


def inline(name: str, data: bytes) -> ArchiveFile:
    """Return a file whose content is in memory."""
    return ArchiveFile(name, data, len(data))


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
