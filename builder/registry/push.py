"""Pushing an image: what the registry lacks, then the manifest, and the tags last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from builder.errors import RegistryError, TagExistsError
from builder.model import Image, Layer
from builder.parallel import Stopped, in_parallel
from builder.progress import QUIET, Reporter
from builder.registry.client import RegistryClient

CHECKS, TRANSFERS = 16, 4

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push did; ``bytes_sent`` counts blobs (layers and config), ``seconds`` all of it."""

    digest: str
    blobs_sent: int = 0
    bytes_sent: int = 0
    blobs_mounted: int = 0
    blobs_present: int = 0
    seconds: float = 0.0


def push_image(
    image: Image,
    client: RegistryClient,
    repository: str,
    tags: Sequence[str],
    *,
    mount_from: Sequence[str] = (),
    force: bool = False,
    immutable: Callable[[str], bool] = lambda tag: False,
    reporter: Reporter = QUIET,
) -> PushReport:
    """Pushes an image and moves tags to it.

    Args:
        image: the image.
        client: the registry.
        repository: where in it.
        tags: to be moved, in this order.
        mount_from: repositories of the same registry that may have some of the blobs.
        force: move even tags that must not move.
        immutable: says of a tag whether it must not move once it is set.
        reporter: gets progress.

    Raises:
        TagExistsError: a tag that must not move names another image; nothing was sent.
        RegistryError: the registry does not let us, or cannot be reached; no tag was moved before everything else was in.
    """
    client.expect_push(repository)
    if not force:
        for tag in filter(immutable, tags):
            there = client.head_manifest(repository, tag)
            if there is not None and there.digest != image.digest:
                raise TagExistsError(
                    f"{client.host}/{repository}:{tag} exists and is {there.digest[:19]}, not {image.digest[:19]}",
                    "this tag is a record: use another one, or --force to overwrite it",
                )
    report = push_blobs_and_manifest(image, client, repository, mount_from=mount_from, reporter=reporter)
    move_tags(image, client, repository, tags)
    return report


def push_blobs_and_manifest(
    image: Image,
    client: RegistryClient,
    repository: str,
    *,
    mount_from: Sequence[str] = (),
    reporter: Reporter = QUIET,
) -> PushReport:
    """Sends everything but the tags: afterwards the image is there by its digest. See :func:`push_image`."""
    started = time.monotonic()
    client.expect_push(repository)
    blobs = {layer.descriptor.digest: layer for layer in image.layers}
    if (
        client.head_manifest(repository, image.digest) is not None
    ):  # a registry takes a manifest only when it has all its blobs
        return PushReport(image.digest, blobs_present=len(blobs) + 1, seconds=time.monotonic() - started)

    def missing(layer: Layer) -> bool:
        return client.head_blob(repository, layer.descriptor.digest) is None

    layers = [layer for layer, lacks in in_parallel(missing, blobs.values(), CHECKS) if lacks]
    mounted = {
        layer.descriptor.digest
        for layer, done in in_parallel(lambda x: _mount(x, client, repository, mount_from), layers, CHECKS)
        if done
    }
    layers = [layer for layer in layers if layer.descriptor.digest not in mounted]
    for layer in layers:
        if layer.path is None and not layer.origin:
            raise RegistryError(
                f"the layer {layer.descriptor.digest} is neither on this machine nor in a registry",
                "build again",
            )
    total = sum(layer.descriptor.size for layer in layers)
    task = f"push {client.host}/{repository}"
    stop = threading.Event()
    origins: dict[str, RegistryClient] = {}
    lock = threading.Lock()

    def advance(amount: int) -> None:
        if stop.is_set():
            raise Stopped
        reporter.advance(task, amount)

    def origin_client(host: str) -> RegistryClient:
        with lock:
            if host not in origins:
                origins[host] = client if host == client.host else RegistryClient(host, reporter=reporter)
            return origins[host]

    def send(layer: Layer) -> None:
        descriptor = layer.descriptor
        if layer.path is not None:
            client.upload_blob(repository, descriptor.digest, layer.path, descriptor.size, advance)
            return
        host, _, source = layer.origin.partition("/")
        other = origin_client(host)
        client.upload_stream(
            repository,
            descriptor.digest,
            descriptor.size,
            lambda offset: other.read_blob(source, descriptor.digest, offset),
            advance,
        )

    reporter.start(task, total)
    try:
        # the largest first: the last one to finish is then a small one
        in_parallel(send, sorted(layers, key=lambda x: -x.descriptor.size), TRANSFERS, stop)
        config, sent, moved = image.config_descriptor, len(layers), len(mounted)
        if client.head_blob(repository, config.digest) is None:
            if any(
                client.mount_blob(repository, config.digest, source)
                for source in mount_from
                if source != repository
            ):
                moved += 1
            else:
                client.upload_stream(
                    repository, config.digest, config.size, lambda offset: iter([image.config[offset:]])
                )
                sent, total = sent + 1, total + config.size
        client.put_manifest(repository, image.digest, image.manifest, image.manifest_descriptor.media_type)
    finally:
        reporter.finish(task)
        for other in origins.values():
            if other is not client:
                other.close()
    present = len(blobs) + 1 - sent - moved
    return PushReport(image.digest, sent, total, moved, present, time.monotonic() - started)


def move_tags(image: Image, client: RegistryClient, repository: str, tags: Sequence[str]) -> None:
    """Makes tags name an image that the repository has already; a tag that does is left alone."""
    for tag in tags:
        there = client.head_manifest(repository, tag)
        if there is None or there.digest != image.digest:
            client.put_manifest(repository, tag, image.manifest, image.manifest_descriptor.media_type)


def _mount(layer: Layer, client: RegistryClient, repository: str, mount_from: Sequence[str]) -> bool:
    host, _, origin = layer.origin.partition("/")
    sources = [origin] if host == client.host and origin else []
    digest = layer.descriptor.digest
    return any(
        client.mount_blob(repository, digest, source)
        for source in [*sources, *mount_from]
        if source != repository
    )
