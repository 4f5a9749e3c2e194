"""``docker://`` bases: images in registries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from builder.bases.image import BaseImage
from builder.model import OCI_MANIFEST, Descriptor, LockedBase
from builder.oci.manifest import (
    INDEXES,
    choose_platform,
    image_layers,
    parse_config,
    parse_json,
    parse_manifest,
)
from builder.oci.reference import Reference
from builder.progress import Reporter
from builder.registry.client import RegistryClient
from builder.settings import Settings
from builder.store.blobs import Store

_DOWNLOADS = 4


def resolve_registry_base(
    reference: str, architecture: str, settings: Settings, store: Store, reporter: Reporter
) -> str:
    """The digest of the manifest that a reference names now for an architecture. The manifest is stored.

    Args:
        reference: ``docker://...``.
        architecture: the OCI's name.
        settings: how to reach the registry.
        store: receives the manifest.
        reporter: receives progress.

    Raises:
        ImageError: the image is not for this architecture, or damaged.
        RegistryError: the registry refuses or cannot be reached.
    """
    parsed = Reference.parse(reference)
    with RegistryClient(parsed.host, settings=settings, reporter=reporter) as client:
        data, media_type, digest = client.get_manifest(parsed.repository, parsed.ref)
        if media_type in INDEXES:
            index = parse_json(data, f"the image index of {reference}")
            wanted = choose_platform(index, architecture, reference)
            data, media_type, digest = client.get_manifest(parsed.repository, wanted.digest)
    parse_manifest(data, Descriptor(media_type, digest, len(data)), reference)
    store.add(data)
    return digest


def open_registry_base(
    locked: LockedBase,
    actual: str,
    settings: Settings,
    store: Store,
    *,
    download: bool,
    reporter: Reporter,
) -> BaseImage:
    """The image that a lock pins. Only what the store lacks is downloaded: a base that it has needs no
    registry.

    Args:
        locked: reference and digest.
        actual: where the image is, if a mirror has it.
        settings: how to reach the registry.
        store: receives manifest, config and layers.
        download: False leaves layers that the store lacks in the registry.
        reporter: receives progress.

    Raises:
        ImageError: the image is damaged.
        RegistryError: the registry refuses or cannot be reached.
    """
    parsed = Reference.parse(actual)
    repository = parsed.repository
    with ExitStack() as stack:

        def client() -> RegistryClient:
            return stack.enter_context(RegistryClient(parsed.host, settings=settings, reporter=reporter))

        path = store.get(locked.digest)
        if path is not None:
            data = path.read_bytes()
        else:
            data, _, _ = client().get_manifest(repository, locked.digest)
            store.add(data)
        manifest = parse_manifest(data, Descriptor(OCI_MANIFEST, locked.digest, len(data)), locked.reference)
        described = Descriptor.from_json(manifest["config"])
        path = store.get(described.digest, described.size)
        if path is None:
            path = client().get_blob_to(repository, described, store)
        config = parse_config(path.read_bytes(), locked.reference)
        layers = image_layers(manifest, config, locked.reference)
        descriptors = {layer.descriptor.digest: layer.descriptor for layer in layers}
        paths = {digest: store.get(digest, d.size) for digest, d in descriptors.items()}
        missing = {digest: d for digest, d in descriptors.items() if paths[digest] is None}
        if missing and download:
            task = f"base {locked.reference}"
            paths |= _download(client, repository, missing, store, task, reporter)
    found = tuple(replace(x, path=paths[x.descriptor.digest], origin=parsed.name) for x in layers)
    return BaseImage(locked.reference, locked.digest, config, found)


def _download(
    open_client: Callable[[], RegistryClient],
    repository: str,
    missing: Mapping[str, Descriptor],
    store: Store,
    task: str,
    reporter: Reporter,
) -> dict[str, Path]:
    """Downloads blobs into the store; returns their paths by digest."""
    client = open_client()

    def fetch(descriptor: Descriptor) -> Path:
        return client.get_blob_to(repository, descriptor, store, lambda n: reporter.advance(task, n))

    reporter.start(task, sum(descriptor.size for descriptor in missing.values()))
    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        paths = list(pool.map(fetch, missing.values()))
    reporter.finish(task)
    return dict(zip(missing, paths, strict=True))
