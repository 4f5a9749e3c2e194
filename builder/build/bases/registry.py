"""``docker://`` bases: images in registries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
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
    from builder.formats.registry.pull import resolve_manifest

    parsed = Reference.parse(reference)
    with _client(parsed, work) as client:
        data, descriptor = resolve_manifest(client, parsed.repository, parsed.ref, architecture)
    parse_manifest(data, descriptor, reference)
    work.store.add(data)
    return descriptor.digest


def _client(image: Reference, work: Workspace) -> RegistryClient:
    # slow: not for a base that the store has
    from builder.formats.registry.client import RegistryClient

    return RegistryClient(image.host, settings=work.settings, reporter=work.reporter)


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
    parsed, store = Reference.parse(actual), work.store
    with ExitStack() as stack:
        client = cache(lambda: stack.enter_context(_client(parsed, work)))

        def config(blob: Descriptor) -> bytes:
            path = store.get(blob.digest, blob.size)
            if path is None:
                path = client().blobs.download_to_store(parsed.repository, blob, store)
            return path.read_bytes()

        manifest = store.get(locked.digest)
        if manifest is None:
            data, _ = client().manifests.get(parsed.repository, locked.digest)
            manifest = store.path(store.add(data))
        data = manifest.read_bytes()
        image = read_image(data, Descriptor("", locked.digest, len(data)), config, locked.reference)
        blobs = [layer.descriptor for layer in image.layers]
        paths = [store.get(blob.digest, blob.size) for blob in blobs]
        known = zip(image.layers, paths, strict=True)
        found = tuple(replace(layer, path=path, origin=parsed.name) for layer, path in known)
        if download and None in paths:
            from builder.formats.registry.pull import fetch_layers

            image = replace(image, layers=found)
            found = fetch_layers(image, store, work.settings, work.reporter, client()).layers
    base_config = parse_config(image.config, locked.reference)
    return BaseImage(locked.reference, locked.digest, base_config, found)


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
