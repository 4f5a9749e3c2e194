"""``docker://`` bases: images in registries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from builder.bases.image import BaseImage
from builder.model import Descriptor, Layer, LockedBase
from builder.oci.manifest import (
    INDEXES,
    choose_platform,
    parse_config,
    parse_index,
    parse_manifest,
    read_image,
)
from builder.oci.reference import Reference
from builder.parallel import in_parallel
from builder.progress import working
from builder.workspace import Workspace

if TYPE_CHECKING:
    from builder.registry.client import RegistryClient

_DOWNLOADS = 4


def resolve_registry_base(reference: str, architecture: str, work: Workspace) -> str:
    """Return the digest of an image's manifest for an architecture. The manifest is stored.

    Args:
        reference: ``docker://...``.
        architecture: the OCI's name.

    Raises:
        ImageError: the image is not for this architecture, or damaged.
        RegistryError: the registry refuses or cannot be reached.
    """
    from builder.registry.client import RegistryClient

    parsed = Reference.parse(reference)
    with RegistryClient(parsed.host, settings=work.settings, reporter=work.reporter) as client:
        data, media_type, digest = client.manifests.get(parsed.repository, parsed.ref)
        if media_type in INDEXES:
            index = parse_index(data, f"the image index of {reference}", media_type)
            wanted = choose_platform(index, architecture, reference)
            data, media_type, digest = client.manifests.get(parsed.repository, wanted.digest)
    parse_manifest(data, Descriptor(media_type, digest, len(data)), reference)
    work.store.add(data)
    return digest


def open_registry_base(
    locked: LockedBase, actual: str, work: Workspace, *, download: bool
) -> BaseImage:
    """Return the image that a lock pins. A base that the store has needs no registry.

    Args:
        locked: reference and digest.
        actual: the reference to open: the same, or that of a mirror.
        download: False leaves layers that the store lacks in the registry.

    Raises:
        ImageError: the image is damaged.
        RegistryError: the registry refuses or cannot be reached.
    """
    parsed = Reference.parse(actual)
    with _Source(parsed, work) as source:
        data = source.manifest(locked.digest)
        descriptor = Descriptor("", locked.digest, len(data))
        image = read_image(data, descriptor, source.blob, locked.reference)
        descriptors = [layer.descriptor for layer in image.layers]
        paths = source.layers(descriptors, f"base {locked.reference}", download=download)
    found = tuple(
        replace(layer, path=paths[layer.descriptor.digest], origin=parsed.name)
        for layer in image.layers
    )
    config = parse_config(image.config, locked.reference)
    return BaseImage(locked.reference, locked.digest, config, found)


def fetch_layer(layer: Layer, work: Workspace) -> Layer:
    """Return a layer of a base with its blob on this machine, downloaded if necessary.

    Raises:
        RegistryError: the registry refuses or cannot be reached.
        SpaceError: the disk is full.
    """
    if layer.path is not None:
        return layer
    with _Source(Reference.parse(layer.origin), work) as source:
        paths = source.layers([layer.descriptor], f"a layer of {layer.origin}", download=True)
    return replace(layer, path=paths[layer.descriptor.digest])


class _Source:
    """Blobs from the store, or else from the repository, which is contacted only if necessary."""

    def __init__(self, image: Reference, work: Workspace) -> None:
        self._image = image
        self._work = work
        self._stack = ExitStack()

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @cached_property
    def _client(self) -> RegistryClient:
        # slow: not for a base that the store has
        from builder.registry.client import RegistryClient

        client = RegistryClient(
            self._image.host, settings=self._work.settings, reporter=self._work.reporter
        )
        return self._stack.enter_context(client)

    def manifest(self, digest: str) -> bytes:
        """Return a manifest, which is stored."""
        path = self._work.store.get(digest)
        if path is not None:
            return path.read_bytes()
        data, _, _ = self._client.manifests.get(self._image.repository, digest)
        self._work.store.add(data)
        return data

    def blob(self, descriptor: Descriptor) -> bytes:
        """Return a small blob, which is stored."""
        path = self._work.store.get(descriptor.digest, descriptor.size)
        if path is None:
            path = self._client.blobs.download_to_store(
                self._image.repository, descriptor, self._work.store
            )
        return path.read_bytes()

    def layers(
        self, descriptors: Sequence[Descriptor], task: str, *, download: bool
    ) -> dict[str, Path | None]:
        """Return the paths of layers in the store by digest; None if they stay in the registry.

        Args:
            descriptors: of the layers.
            task: the name of the download for the reporter.
            download: fetch those that the store lacks.
        """
        paths = {d.digest: self._work.store.get(d.digest, d.size) for d in descriptors}
        missing = {d.digest: d for d in descriptors if paths[d.digest] is None}
        if not missing or not download:
            return paths
        client, repository = self._client, self._image.repository

        def fetch(one: Descriptor) -> Path:
            def advance(size: int) -> None:
                self._work.reporter.advance(task, size)

            return client.blobs.download_to_store(repository, one, self._work.store, advance)

        total = sum(one.size for one in missing.values())
        with working(self._work.reporter, task, total):
            found = in_parallel(fetch, missing.values(), _DOWNLOADS)
        paths |= {one.digest: path for one, path in found}
        return paths
