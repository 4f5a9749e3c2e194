"""Pulls an image from a registry, with all its layers, into the store."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from builder.core.model import Descriptor, Image, Layer
from builder.core.parallel import Advance, run_task
from builder.core.progress import QUIET, Reporter
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.formats.oci.documents import check_size
from builder.formats.oci.manifest import MANIFESTS, read_image, stated_media_type, through_indexes

from .client import RegistryClient
from .push import TRANSFERS, Origins

log = logging.getLogger(__name__)


def resolve_manifest(
    client: RegistryClient, repository: str, ref: str, architecture: str
) -> tuple[bytes, Descriptor]:
    """Return the image manifest of a tag or digest; of an index, that of ``linux/<architecture>``.

    Args:
        client: the registry.
        repository: in that registry.
        ref: a tag or a digest.
        architecture: as the OCI names it: ``amd64``, ``arm64``.

    Raises:
        RegistryError: it does not exist, or is not an image.
        ImageError: the index has no image for this architecture, or is damaged.
    """
    where = client.manifests.name(repository, ref)
    data, first = client.manifests.get(repository, ref)

    def read(descriptor: Descriptor) -> bytes:
        if descriptor.digest == first.digest:
            return data
        check_size(descriptor.size, f"the manifest {descriptor.digest} of {where}")
        return client.manifests.get(repository, descriptor.digest)[0]

    found = through_indexes(first, read, architecture, where)
    manifest = read(found)
    media_type = stated_media_type(manifest, found.media_type, where)
    if media_type not in MANIFESTS:
        raise client.error(
            f"{where} is not an image; its media type is {media_type or 'not stated'}",
            "builder reads OCI images and Docker images of schema 2: "
            "push an older one again with a current Docker",
        )
    return manifest, Descriptor(media_type, found.digest, len(manifest))


def pull_image(
    client: RegistryClient, repository: str, ref: str, architecture: str, store: Store
) -> Image:
    """Download an image; blobs in the store are not downloaded again.

    Args:
        client: the registry; its reporter receives progress.
        repository: in that registry.
        ref: a tag or a digest.
        architecture: which image of an index for several architectures (``amd64``).
        store: receives the config and the layers.

    Raises:
        RegistryError, ImageError, HashMismatch, SpaceError: see the client and
            :func:`resolve_manifest`.
    """
    where = f"{client.host}/{repository}"
    manifest, descriptor = resolve_manifest(client, repository, ref, architecture)

    def read(config: Descriptor) -> bytes:
        return client.blobs.download_to_store(repository, config, store).read_bytes()

    image = read_image(manifest, descriptor, read, where)
    remote = tuple(replace(layer, origin=where) for layer in image.layers)
    image = replace(image, layers=remote)
    return fetch_layers(image, store, client.settings, client.reporter, client)


def fetch_layers(
    image: Image,
    store: Store,
    settings: Settings | None,
    reporter: Reporter = QUIET,
    client: RegistryClient | None = None,
) -> Image:
    """Return the image with every layer on this machine; missing ones are downloaded.

    Args:
        image: the image.
        store: receives the layers.
        settings: its ``offline`` forbids registries on other machines.
        reporter: receives progress.
        client: an open client, used for layers on that client's host.

    Raises:
        RegistryError: a layer has no origin, its registry cannot be reached, or ``offline`` forbids
            it.
        HashMismatch, SpaceError: see the client.
    """
    absent = {layer.descriptor.digest: layer for layer in image.layers if layer.path is None}
    missing = list(absent.values())
    log.info("%d of %d layers must be downloaded", len(missing), len(image.layers))
    if not missing:
        return image
    with Origins(settings, reporter, client) as origins:
        for layer in missing:  # without origin: an error before anything is downloaded
            origins.client_of(layer)
        task = f"pulling {missing[0].origin}"

        def download(layer: Layer, advance: Advance) -> Path:
            source, repository = origins.client_of(layer)
            return source.blobs.download_to_store(repository, layer.descriptor, store, advance)

        done = run_task(download, missing, TRANSFERS, reporter, task, lambda x: x.descriptor.size)
    paths = {layer.descriptor.digest: path for layer, path in done}
    layers = tuple(
        layer if layer.path is not None else replace(layer, path=paths[layer.descriptor.digest])
        for layer in image.layers
    )
    return replace(image, layers=layers)
