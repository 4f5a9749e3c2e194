"""``oci-archive:`` and ``docker-archive:`` bases: images in tar files, which may be compressed."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from builder.bases.image import BaseImage, stored_base
from builder.bases.pack import pack_tar
from builder.errors import ImageError
from builder.model import (
    OCI_CONFIG,
    OCI_LAYER_GZIP,
    OCI_LAYER_ZSTD,
    OCI_MANIFEST,
    Descriptor,
    Layer,
    canonical_json,
)
from builder.oci.manifest import INDEXES, choose, choose_platform, parse_config, parse_json, parse_manifest
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import CHUNK
from builder.store.records import read_record, write_record
from builder.trees.inflate import GZIP_MAGIC, ZSTD_MAGIC, inflate

_WRITE_AGAIN = "the archive is damaged: write it again"


def open_oci_archive(
    reference: str, path: Path, tag: str | None, architecture: str, store: Store
) -> BaseImage:
    """An image in a tar of an OCI layout. Its blobs are copied into the store.

    Args:
        reference: for messages.
        path: the archive.
        tag: a tag or digest; None for the only image.
        architecture: the OCI's name.
        store: receives the blobs.

    Raises:
        ImageError: there is no such image, or the archive is damaged.
    """
    where = str(path)
    with _opened(path) as archive:
        index = parse_json(archive.read("index.json"), f"index.json of {path}")
        wanted = choose(index.get("manifests") or [], tag, where)
        while wanted.media_type in INDEXES:
            nested = parse_json(_blob(archive, wanted, store), f"{wanted.digest} of {path}")
            wanted = choose_platform(nested, architecture, where)
        data = parse_manifest(_blob(archive, wanted, store), wanted, where)
        for described in (data["config"], *data["layers"]):
            _store_blob(archive, Descriptor.from_json(described), store)
    return stored_base(reference, wanted.digest, store)


def open_docker_archive(
    reference: str, path: Path, tag: str | None, settings: Settings, store: Store
) -> BaseImage:
    """An image that ``docker save`` wrote. Its layers are copied into the store, with an OCI manifest.

    Uncompressed layers are compressed, always to the same bytes.

    Args:
        reference: for messages.
        path: the archive.
        tag: ``TAG`` or ``NAME:TAG``; None for the only image.
        settings: threads to compress with.
        store: receives the blobs.

    Raises:
        ImageError: there is no such image, or the archive is damaged.
    """
    with _opened(path) as archive:
        image = _choose_docker_image(archive, tag)
        raw_config = archive.read(image["Config"])
        diff_ids = parse_config(raw_config, str(path))["rootfs"]["diff_ids"]
        names = image["Layers"]
        if len(diff_ids) != len(names):
            raise ImageError(f"{path}: {len(names)} layers but {len(diff_ids)} diff_ids", _WRITE_AGAIN)
        layers = [
            _docker_layer(archive, name, diff_id, settings, store)
            for name, diff_id in zip(names, diff_ids, strict=True)
        ]
    config = Descriptor(OCI_CONFIG, store.add(raw_config), len(raw_config))
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config.to_json(),
            "layers": [layer.descriptor.to_json() for layer in layers],
        }
    )
    return stored_base(reference, store.add(manifest), store)


# the tar file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Archive:
    """A tar file that holds an image."""

    path: Path
    tar: tarfile.TarFile

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a file, in chunks."""
        member = self._member(name)
        try:
            stream = self.tar.extractfile(member)
        except KeyError:  # a link to something that is not in the tar
            stream = None
        if stream is None:
            raise ImageError(f"{self.path}: {member.name} is not a file", _WRITE_AGAIN)
        while data := stream.read(CHUNK):
            yield data

    def _member(self, name: str) -> tarfile.TarInfo:
        for spelling in (name, f"./{name}"):
            try:
                return self.tar.getmember(spelling)
            except KeyError:
                continue
        raise ImageError(
            f"{self.path} has no {name}", "it is another kind of archive, or damaged: write it again"
        )


@contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    hint = "write it again: skopeo copy, docker save or builder build"
    try:
        with tarfile.open(path) as tar:
            yield _Archive(path, tar)
    except tarfile.TarError as e:
        raise ImageError(f"{path} is not a complete archive: {e}", hint) from None
    except (EOFError, OSError) as e:
        is_system_error = isinstance(e, OSError) and e.filename is None and bool(e.errno)
        if is_system_error:  # such as a full disk while the store is written
            raise
        raise ImageError(f"{path} cannot be read: {e}", hint) from None


# OCI archives -----------------------------------------------------------------------------------------------


def _blob(archive: _Archive, descriptor: Descriptor, store: Store) -> bytes:
    _store_blob(archive, descriptor, store)
    return store.path(descriptor.digest).read_bytes()


def _store_blob(archive: _Archive, descriptor: Descriptor, store: Store) -> None:
    """Copies a blob into the store unless the store has it."""
    if store.get(descriptor.digest, descriptor.size) is not None:
        return
    with store.writer() as out:
        for data in archive.chunks(f"blobs/{descriptor.digest.replace(':', '/')}"):
            out.write(data)
        actual, _ = out.commit()
    if actual != descriptor.digest:
        raise ImageError(
            f"{archive.path}: blob {descriptor.digest} is damaged (its digest is {actual})",
            "write the archive again",
        )


# docker archives --------------------------------------------------------------------------------------------


def _choose_docker_image(archive: _Archive, tag: str | None) -> dict[str, Any]:
    """The entry of ``manifest.json`` that has a tag, or the only one."""
    # The file holds a list, and parse_json() takes objects.
    data = b'{"images":' + archive.read("manifest.json") + b"}"
    listing = parse_json(data, f"manifest.json of {archive.path}")["images"]
    images: list[dict[str, Any]] = [image for image in listing if _has_tag(image, tag)]
    if len(images) == 1:
        return images[0]
    tags = [name for image in listing for name in image.get("RepoTags") or ()]
    named = f" named {tag!r}" if tag else ""
    raise ImageError(
        f"{archive.path} holds {len(images)} images{named}, not one",
        f"name one by its tag: {', '.join(tags) or 'none'}",
    )


def _has_tag(image: dict[str, Any], tag: str | None) -> bool:
    names = image.get("RepoTags") or ()
    return tag is None or any(name == tag or name.endswith(f":{tag}") for name in names)


def _docker_layer(archive: _Archive, name: str, diff_id: str, settings: Settings, store: Store) -> Layer:
    """A layer of the archive, in the store. A record maps its diff_id to the blob."""
    record = store.folders.bases / f"layer-{diff_id.replace(':', '-')}.json"
    data = read_record(record)
    if data is not None:
        known = Descriptor.from_json(data)
        blob = store.get(known.digest, known.size)
        if blob is not None:
            return Layer(known, diff_id, blob)
    chunks = archive.chunks(name)
    first = next(chunks, b"")
    whole = chain([first], chunks)
    if first.startswith(GZIP_MAGIC):
        layer = _store_compressed(whole, OCI_LAYER_GZIP, store)
    elif first.startswith(ZSTD_MAGIC):
        layer = _store_compressed(whole, OCI_LAYER_ZSTD, store)
    else:
        layer = pack_tar(whole, store, settings.jobs)
    if layer.diff_id != diff_id:
        store.drop(layer.descriptor.digest)
        raise ImageError(
            f"{archive.path}: layer {name} is {layer.diff_id}, its config lists {diff_id}", _WRITE_AGAIN
        )
    write_record(record, layer.descriptor.to_json())
    return layer


def _store_compressed(chunks: Iterator[bytes], media_type: str, store: Store) -> Layer:
    """A layer that is compressed already, stored unchanged."""
    with store.writer() as out:
        for data in chunks:
            out.write(data)
        digest, size = out.commit()
    tar = hashlib.sha256()
    for data in inflate(store.path(digest)):
        tar.update(data)
    return Layer(Descriptor(media_type, digest, size), f"sha256:{tar.hexdigest()}", store.path(digest))
