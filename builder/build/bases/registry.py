"""``docker://`` bases: images in registries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from builder.core.model import Descriptor, Layer, LockedBase
from builder.core.workspace import Workspace
from builder.formats.oci.image import plain_image
from builder.formats.oci.manifest import parse_config, parse_manifest, read_image
from builder.formats.oci.reference import Reference

from .image import BaseImage

if TYPE_CHECKING:
    from builder.formats.registry.client import RegistryClient


def resolve_registry_base(reference: str, architecture: str, work: Workspace) -> str:
    """Return the digest of an image's manifest for an architecture. The manifest is stored.

    Args:
        reference: ``docker://...``.
        architecture: the OCI's name.

    Raises:
        ImageError: the image is not for this architecture, or damaged.
        RegistryError: the registry refuses or cannot be reached.
    """
    from builder.formats.registry.client import RegistryClient
    from builder.formats.registry.pull import resolve_manifest

    parsed = Reference.parse(reference)
    with RegistryClient(parsed.host, settings=work.settings, reporter=work.reporter) as client:
        data, descriptor = resolve_manifest(client, parsed.repository, parsed.ref, architecture)
    parse_manifest(data, descriptor, reference)
    work.store.add(data)
    return descriptor.digest


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
        blobs = [layer.descriptor for layer in image.layers]
        paths = [work.store.get(blob.digest, blob.size) for blob in blobs]
        known = zip(image.layers, paths, strict=True)
        found = tuple(replace(layer, path=path, origin=parsed.name) for layer, path in known)
        if download and None in paths:
            from builder.formats.registry.pull import fetch_layers

            image, client = replace(image, layers=found), source.client
            found = fetch_layers(image, work.store, work.settings, work.reporter, client).layers
    config = parse_config(image.config, locked.reference)
    return BaseImage(locked.reference, locked.digest, config, found)


def present_layers(layers: Sequence[Layer], work: Workspace) -> tuple[Layer, ...]:
    """Return layers with their blobs on this machine, downloaded if necessary.

    Raises:
        RegistryError: the registry refuses or cannot be reached.
        SpaceError: the disk is full.
    """
    if all(layer.path is not None for layer in layers):
        return tuple(layers)
    from builder.formats.registry.pull import fetch_layers

    image = plain_image(layers, {})
    return fetch_layers(image, work.store, work.settings, work.reporter).layers


def fetch_layer(layer: Layer, work: Workspace) -> Layer:
    """Return a layer with its blob on this machine, see :func:`present_layers`."""
    return present_layers([layer], work)[0]


class _Source(ExitStack):
    """Blobs from the store, or else from the repository, which is contacted only if necessary."""

    def __init__(self, image: Reference, work: Workspace) -> None:
        super().__init__()
        self._image = image
        self._work = work

    @cached_property
    def client(self) -> RegistryClient:
        """The registry's client."""
        # slow: not for a base that the store has
        from builder.formats.registry.client import RegistryClient

        host, work = self._image.host, self._work
        client = RegistryClient(host, settings=work.settings, reporter=work.reporter)
        return self.enter_context(client)

    def manifest(self, digest: str) -> bytes:
        """Return a manifest, which is stored."""
        path = self._work.store.get(digest)
        if path is not None:
            return path.read_bytes()
        data, _, _ = self.client.manifests.get(self._image.repository, digest)
        self._work.store.add(data)
        return data

    def blob(self, descriptor: Descriptor) -> bytes:
        """Return a small blob, which is stored."""
        store, repository = self._work.store, self._image.repository
        path = store.get(descriptor.digest, descriptor.size)
        if path is None:
            path = self.client.blobs.download_to_store(repository, descriptor, store)
        return path.read_bytes()
