"""Pushes an image: the blobs that the registry lacks, then the manifest. Tags move afterwards.

1. Ask for the manifest by its digest. If the registry has it, it has all its blobs (registries check that),
   and nothing is sent.
2. Ask for every blob, 16 requests at a time. Only missing ones continue.
3. Mount missing blobs from other repositories of the same registry where possible.
4. Upload the rest, four at a time, the largest first: from the store, or from the registry that a layer of
   the base image comes from, without a copy on this machine.
5. Upload the config, then the manifest under its digest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from builder.errors import RegistryError
from builder.model import Descriptor, Image, Layer
from builder.parallel import Stopped, in_parallel
from builder.progress import QUIET, Reporter
from builder.registry.client import RegistryClient
from builder.registry.manifests import ANY, TagMove
from builder.registry.origins import Origins
from builder.registry.source import bytes_source

#: Requests at a time: small ones, and transfers.
CHECKS, TRANSFERS = 16, 4


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push did. Blobs are layers and the config."""

    digest: str
    sent: tuple[Descriptor, ...] = ()
    """The blobs whose bytes were sent: those that were neither present nor mounted."""
    blobs_sent: int = 0
    bytes_sent: int = 0
    blobs_mounted: int = 0
    blobs_present: int = 0
    """Blobs that the repository had before."""
    seconds: float = 0.0
    """Of the whole push."""


def push_image(
    image: Image,
    client: RegistryClient,
    repository: str,
    *,
    mount_from: Sequence[str] = (),
    reporter: Reporter = QUIET,
) -> PushReport:
    """Pushes everything except the tags: afterwards the image can be pulled by its digest.

    Args:
        image: the image.
        client: the registry.
        repository: in that registry.
        mount_from: repositories of the same registry that may have some of the blobs.
        reporter: receives progress.

    Raises:
        RegistryError: the registry refuses, or cannot be reached; then it does not have the image.
    """
    return _Push(image, client, repository, mount_from, reporter).run()


def move_tag(
    image: Image, client: RegistryClient, repository: str, tag: str, *, expected: str | None = ANY
) -> TagMove:
    """Points a tag at an image that the repository has. See :meth:`Manifests.move_tag`.

    Args:
        image: the image.
        client: the registry.
        repository: in that registry.
        tag: the tag.
        expected: the digest that the tag must name before; None: it must not exist; :data:`ANY`: it is moved
            in any case.

    Raises:
        RegistryError: the registry refuses, or cannot be reached.
    """
    media_type = image.manifest_descriptor.media_type
    return client.move_tag(repository, tag, image.manifest, media_type, expected=expected)


def move_tags(image: Image, client: RegistryClient, repository: str, tags: Sequence[str]) -> None:
    """Points tags at an image that the repository has, whatever they name now.

    Raises:
        RegistryError: the registry refuses, or cannot be reached.
    """
    for tag in tags:
        move_tag(image, client, repository, tag)


class _Push:
    """One push of one image."""

    def __init__(
        self,
        image: Image,
        client: RegistryClient,
        repository: str,
        mount_from: Sequence[str],
        reporter: Reporter,
    ) -> None:
        self._image = image
        self._client = client
        self._repository = repository
        self._mount_from = mount_from
        self._reporter = reporter
        self._task = f"push {client.host}/{repository}"
        self._stop = threading.Event()

    def run(self) -> PushReport:
        started = time.monotonic()
        image, client = self._image, self._client
        client.expect_push(self._repository)
        layers = {layer.descriptor.digest: layer for layer in image.layers}
        blobs = len(layers) + 1
        if client.head_manifest(self._repository, image.digest) is not None:
            return PushReport(image.digest, blobs_present=blobs, seconds=time.monotonic() - started)

        missing = self._missing(layers.values())
        to_send = self._not_mounted(missing)
        config_sent, config_mounted = self._upload(to_send)
        client.put_manifest(
            self._repository, image.digest, image.manifest, image.manifest_descriptor.media_type
        )

        sent = [layer.descriptor for layer in to_send]
        if config_sent:
            sent.append(image.config_descriptor)
        mounted = len(missing) - len(to_send) + config_mounted
        return PushReport(
            image.digest,
            sent=tuple(sent),
            blobs_sent=len(sent),
            bytes_sent=sum(blob.size for blob in sent),
            blobs_mounted=mounted,
            blobs_present=blobs - len(sent) - mounted,
            seconds=time.monotonic() - started,
        )

    def _missing(self, layers: Iterable[Layer]) -> list[Layer]:
        """The layers that the repository lacks."""

        def is_missing(layer: Layer) -> bool:
            return self._client.head_blob(self._repository, layer.descriptor.digest) is None

        return [layer for layer, missing in in_parallel(is_missing, layers, CHECKS) if missing]

    def _not_mounted(self, layers: Iterable[Layer]) -> list[Layer]:
        """The layers that could not be mounted from another repository."""

        def mount(layer: Layer) -> bool:
            host, _, origin = layer.origin.partition("/")
            sources = [origin] if origin and host == self._client.host else []
            return self._mount(layer.descriptor, [*sources, *self._mount_from])

        return [layer for layer, mounted in in_parallel(mount, layers, CHECKS) if not mounted]

    def _mount(self, blob: Descriptor, sources: Sequence[str]) -> bool:
        others = [source for source in sources if source != self._repository]
        return any(self._client.mount_blob(self._repository, blob.digest, source) for source in others)

    def _upload(self, layers: Sequence[Layer]) -> tuple[int, int]:
        """Uploads layers and the config; returns how many configs (0 or 1) were sent and mounted."""
        for layer in layers:
            if layer.path is None and not layer.origin:
                raise RegistryError(
                    f"the layer {layer.descriptor.digest} is neither on this machine nor in a registry",
                    "build again",
                )
        self._reporter.start(self._task, sum(layer.descriptor.size for layer in layers))
        try:
            with Origins(self._client.settings, self._reporter, self._client) as origins:
                largest_first = sorted(layers, key=lambda layer: -layer.descriptor.size)
                in_parallel(
                    lambda layer: self._upload_layer(layer, origins), largest_first, TRANSFERS, self._stop
                )
            return self._upload_config()
        finally:
            self._reporter.finish(self._task)

    def _upload_layer(self, layer: Layer, origins: Origins) -> None:
        blob = layer.descriptor
        if layer.path is not None:
            self._client.upload_blob(self._repository, blob, layer.path, self._advance)
            return
        origin, source = origins.client_of(layer)
        self._client.upload_stream(
            self._repository,
            blob,
            lambda offset: origin.read_blob(source, blob.digest, offset),
            self._advance,
        )

    def _upload_config(self) -> tuple[int, int]:
        config = self._image.config_descriptor
        if self._client.head_blob(self._repository, config.digest) is not None:
            return 0, 0
        if self._mount(config, self._mount_from):
            return 0, 1
        self._client.upload_stream(self._repository, config, bytes_source(self._image.config))
        return 1, 0

    def _advance(self, amount: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._reporter.advance(self._task, amount)
