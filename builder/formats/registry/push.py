"""Pushes an image: the missing blobs, then the manifest. Tags move afterwards.

1. Ask for the manifest by its digest, and for every blob, 16 requests at a time. Only missing
   blobs, and those of another size, continue: a registry may have lost one although it has the
   manifest.
2. Mount missing blobs from other repositories of the same registry where possible: those that this
   command has pushed them to, and that of the base.
3. Upload the rest, eight at a time, the largest first: from the store, or from the registry that a
   layer of the base image comes from, without a copy on this machine. A layer of the store that
   turns out to be damaged is removed there.
4. Upload the config, then the manifest under its digest, unless the registry had all of it before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.core.errors import RegistryError
from builder.core.model import Descriptor, Image, Layer
from builder.core.parallel import Advance, in_parallel, run_task
from builder.core.progress import Reporter, working
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.text import human_bytes
from builder.formats.oci.image import image_blobs

from .client import RegistryClient
from .source import DamagedSource, bytes_source


class Origins(ExitStack):
    """Creates one client per registry when it is needed; a context manager, safe for threads.

    Args:
        settings: its ``offline`` forbids registries on other machines.
        reporter: receives warnings.
        client: an open client, used for layers on that client's host; it stays open.
    """

    def __init__(
        self, settings: Settings | None, reporter: Reporter, client: RegistryClient | None
    ) -> None:
        super().__init__()
        self._settings = settings
        self._reporter = reporter
        self._clients = {client.host: client} if client is not None else {}
        self._lock = threading.Lock()

    def client_of(self, layer: Layer) -> tuple[RegistryClient, str]:
        """Return the client and the repository of a layer that is not on this machine.

        Raises:
            RegistryError: the layer has no origin, or ``offline`` forbids its registry.
        """
        host, _, repository = layer.origin.partition("/")
        if not repository:
            raise RegistryError(
                f"the layer {layer.descriptor.digest} is neither on this machine nor in a registry",
                "build again",
            )
        with self._lock:
            if host not in self._clients:
                client = RegistryClient(host, settings=self._settings, reporter=self._reporter)
                self._clients[host] = self.enter_context(client)
            return self._clients[host], repository


log = logging.getLogger(__name__)

#: Requests at a time: small ones, and downloads.
CHECKS, TRANSFERS = 16, 4
#: Uploads at a time. Where a connection is slow and the network is not, eight take 0.6 to 0.8 of
#: the time of four (docs/performance.md).
UPLOADS = 8
#: By registry and digest: the first repository to which this command pushed a blob. Images that
#: share layers may go to several repositories of a registry. A layer that one of them has is
#: mounted in the others, not sent again.
KnownBlobs = dict[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push did. Blobs are layers and the config."""

    digest: str
    sent: tuple[Descriptor, ...] = ()
    """The blobs whose bytes were sent: those that were neither present nor mounted."""
    blobs_mounted: int = 0
    blobs_present: int = 0
    """Blobs that the repository had before."""
    seconds: float = 0.0
    """Of the whole push."""

    @property
    def blobs_sent(self) -> int:
        """The number of blobs that were sent."""
        return len(self.sent)

    @property
    def bytes_sent(self) -> int:
        """The sum of their sizes."""
        return sum(blob.size for blob in self.sent)


def push_image(
    image: Image, client: RegistryClient, repository: str, known: KnownBlobs | None = None
) -> PushReport:
    """Push everything except the tags: afterwards the image can be pulled by its digest.

    Args:
        image: the image.
        client: the registry; its reporter receives progress.
        repository: in that registry.
        known: where blobs are that were pushed before; receives those of this image.

    Raises:
        RegistryError: the registry refuses, or cannot be reached; then it does not have the image.
    """
    known = {} if known is None else known
    report = _Push(image, client, repository, known).run()
    for blob in image_blobs(image):
        known.setdefault((client.host, blob.digest), repository)
    return report


@dataclass(frozen=True, eq=False)
class _Push:
    """One push of one image."""

    image: Image
    client: RegistryClient
    repository: str
    known: KnownBlobs

    @property
    def task(self) -> str:
        return f"pushing to {self.client.host}/{self.repository}"

    def run(self) -> PushReport:
        started = time.monotonic()
        image, client = self.image, self.client
        client.expect_push(self.repository)
        config = Layer(image.config_descriptor, "", title="the config")
        blobs = {one.descriptor.digest: one for one in (*image.layers, config)}
        has_manifest = client.manifests.head(self.repository, image.digest) is not None

        with working(self.client.reporter, f"asking {client.host} for layers"):
            missing = self._missing(blobs.values())
            to_send = self._not_mounted(missing)
        present, mounted = len(blobs) - len(missing), len(missing) - len(to_send)
        counts = (present, mounted, len(to_send))
        log.info("%s: %d blobs are there, %d mounted, %d to send", self.task, *counts)
        self._upload([layer for layer in to_send if layer is not config])
        if config in to_send:
            source = bytes_source(image.config)
            client.blobs.upload(self.repository, image.config_descriptor, source)
        if missing or not has_manifest:
            media_type = image.manifest_descriptor.media_type
            client.manifests.put(self.repository, image.digest, image.manifest, media_type)
        sent = tuple(layer.descriptor for layer in to_send)
        seconds = time.monotonic() - started
        return PushReport(image.digest, sent, mounted, present, seconds)

    def _missing(self, layers: Iterable[Layer]) -> list[Layer]:
        """Return the layers that the repository does not have, or has with another size."""

        def is_there(layer: Layer) -> bool:
            return self.client.blobs.has(self.repository, layer.descriptor)

        return [layer for layer, there in in_parallel(is_there, layers, CHECKS) if not there]

    def _not_mounted(self, layers: Iterable[Layer]) -> list[Layer]:
        """Return the layers that could not be mounted from another repository."""
        return [one for one, mounted in in_parallel(self._mount, layers, CHECKS) if not mounted]

    def _mount(self, layer: Layer) -> bool:
        """Return whether the repository has the whole blob after a mount.

        Repositories that this command has pushed it to are tried before that of the base.
        """
        blobs, repository, blob = self.client.blobs, self.repository, layer.descriptor
        known = self.known.get((self.client.host, blob.digest), repository)
        host, _, origin = layer.origin.partition("/")
        sources = dict.fromkeys([known, origin if host == self.client.host else ""])
        others = [source for source in sources if source not in ("", repository)]
        mounted = any(blobs.mount(repository, blob.digest, source) for source in others)
        return mounted and blobs.has(repository, blob)

    def _upload(self, layers: Sequence[Layer]) -> None:
        if not layers:
            return
        reporter = self.client.reporter
        with Origins(self.client.settings, reporter, self.client) as origins:
            for layer in layers:
                if layer.path is None:  # without origin: an error before anything is sent
                    origins.client_of(layer)
            upload = partial(self._upload_layer, origins)
            run_task(upload, layers, UPLOADS, reporter, self.task, lambda one: one.descriptor.size)

    def _upload_layer(self, origins: Origins, layer: Layer, advance: Advance) -> None:
        blob = layer.descriptor
        log.info("sending %s (%s)", layer.title or blob.digest, human_bytes(blob.size))
        if layer.path is not None:
            self._upload_file(blob, layer.path, advance)
            return
        origin, source = origins.client_of(layer)
        try:
            self.client.blobs.upload(
                self.repository,
                blob,
                lambda offset: origin.blobs.read(source, blob.digest, offset),
                advance,
            )
        except DamagedSource:
            raise origin.error(
                f"{layer.origin} returned different content for the layer {blob.digest}",
                f"the copy there is damaged, or a proxy changes it: ask the owner of {origin.host}",
            ) from None

    def _upload_file(self, blob: Descriptor, path: Path, advance: Advance) -> None:
        try:
            self.client.blobs.upload_file(self.repository, blob, path, advance)
        except RegistryError as e:
            may_be_damaged = isinstance(e, DamagedSource) or "DIGEST_INVALID" in e.codes
            if may_be_damaged and not _is_intact(path, blob):
                raise self._damaged(blob, path) from None
            if isinstance(e, DamagedSource):
                raise RegistryError(
                    f"{path} was read with other bytes than it has",
                    "publish again; if this happens twice, check the memory and the disk of this machine",
                ) from None
            raise

    def _damaged(self, blob: Descriptor, path: Path) -> RegistryError:
        """Remove a damaged layer from the store; return the error for it."""
        settings = self.client.settings
        store = Store(settings.cache) if settings is not None else None
        if store is None or path != store.path(blob.digest):
            message = f"{path} is damaged: it is no longer {blob.digest}"
            return RegistryError(message, "delete it and build again")
        store.drop(blob.digest)
        message = f"the layer {blob.digest} was damaged in the cache ({path}); it was removed there"
        return RegistryError(message, "build again: the layer is made again")


def _is_intact(path: Path, blob: Descriptor) -> bool:
    """Read a whole file, and return whether it has the size and the digest of a blob."""
    try:
        return path.stat().st_size == blob.size and sha256_file(path) == blob.digest
    except OSError:
        return False
