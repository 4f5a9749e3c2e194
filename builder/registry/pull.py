"""Pulling an image from a registry, layers and all, into the store."""

from __future__ import annotations

import threading
from pathlib import Path

from builder.errors import RegistryError
from builder.model import Descriptor, Image, Layer
from builder.oci.manifest import (
    INDEXES,
    MANIFESTS,
    choose_platform,
    image_layers,
    parse_config,
    parse_json,
    parse_manifest,
    with_path,
)
from builder.oci.reference import Reference
from builder.parallel import Stopped, in_parallel
from builder.progress import QUIET, Reporter
from builder.registry.client import RegistryClient
from builder.registry.push import TRANSFERS
from builder.store.blobs import Store


def resolve_manifest(
    client: RegistryClient, repository: str, ref: str, architecture: str
) -> tuple[bytes, Descriptor]:
    """The image manifest that a tag or digest names, taken out of an index for ``linux/<architecture>`` where there is one.

    Raises:
        RegistryError: there is none, or it is no image.
        ImageError: the index has nothing for this architecture, or is damaged.
    """
    where = str(Reference(client.host, repository, None if ":" in ref else ref, ref if ":" in ref else None))
    for _ in range(4):
        data, media_type, digest = client.get_manifest(repository, ref)
        if media_type in MANIFESTS:
            return data, Descriptor(media_type, digest, len(data))
        if media_type not in INDEXES:
            raise RegistryError(
                f"{where} is a {media_type or 'thing without media type'}, not an image",
                "builder reads OCI images and Docker's of schema 2; push an older one again with a current Docker",
            )
        ref = choose_platform(parse_json(data, f"the image index {where}"), architecture, where).digest
    raise RegistryError(f"{where}: image indexes point at each other", "the image is damaged: push it again")


def pull_image(
    client: RegistryClient,
    repository: str,
    ref: str,
    architecture: str,
    store: Store,
    reporter: Reporter = QUIET,
    *,
    layers: bool = True,
) -> Image:
    """Fetches an image; what is in the store already is not fetched again.

    Args:
        client: the registry.
        repository: where in it.
        ref: a tag or a digest.
        architecture: the one to take of an image for several (``amd64``).
        store: gets the config and the layers.
        reporter: gets progress.
        layers: False leaves the layers in the registry: their ``path`` is None.

    Raises:
        RegistryError, ImageError, HashMismatch, SpaceError: see the client and :func:`resolve_manifest`.
    """
    where = f"{client.host}/{repository}"
    manifest, descriptor = resolve_manifest(client, repository, ref, architecture)
    data = parse_manifest(manifest, descriptor, where)
    config_descriptor = Descriptor.from_json(data["config"])
    config = client.get_blob_to(repository, config_descriptor, store).read_bytes()
    found = tuple(
        Layer(x.descriptor, x.diff_id, None, where, x.title)
        for x in image_layers(data, parse_config(config, where), where)
    )
    image = Image(found, config, config_descriptor, manifest, descriptor)
    return fetch_layers(image, store, reporter, client) if layers else image


def fetch_layers(
    image: Image, store: Store, reporter: Reporter = QUIET, client: RegistryClient | None = None
) -> Image:
    """The same image with every layer on this machine's disk; missing ones are fetched from where they come from.

    Args:
        image: the image.
        store: gets the layers.
        reporter: gets progress.
        client: is used for its own host; others are made as they are needed.
    """
    missing = {x.descriptor.digest: x for x in image.layers if x.path is None}
    if not missing:
        return image
    clients = {client.host: client} if client is not None else {}
    own: list[RegistryClient] = []
    for layer in missing.values():
        host, _, repository = layer.origin.partition("/")
        if not repository:
            raise RegistryError(
                f"the layer {layer.descriptor.digest} is neither on this machine nor in a registry",
                "build again",
            )
        if host not in clients:
            own.append(RegistryClient(host, reporter=reporter))
            clients[host] = own[-1]
    task = f"pull {next(iter(missing.values())).origin}"
    stop = threading.Event()

    def advance(amount: int) -> None:
        if stop.is_set():
            raise Stopped
        reporter.advance(task, amount)

    def fetch(layer: Layer) -> Path:
        host, _, repository = layer.origin.partition("/")
        return clients[host].get_blob_to(repository, layer.descriptor, store, advance)

    reporter.start(task, sum(x.descriptor.size for x in missing.values()))
    try:
        found = {
            x.descriptor.digest: path for x, path in in_parallel(fetch, missing.values(), TRANSFERS, stop)
        }
    finally:
        reporter.finish(task)
        for other in own:
            other.close()
    layers = tuple(
        x if x.path is not None else with_path(x, found[x.descriptor.digest]) for x in image.layers
    )
    return Image(layers, image.config, image.config_descriptor, image.manifest, image.manifest_descriptor)
