"""Places for published images: a repository of a registry, or an OCI layout on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.errors import ImageError, RegistryError, UsageError
from builder.model import Descriptor, Image, Layer
from builder.oci.documents import read_file
from builder.oci.layout import (
    blob_path,
    list_tags,
    move_layout_tag,
    read_blob,
    read_index,
    read_layout,
    write_layout,
)
from builder.oci.manifest import choose
from builder.oci.reference import TAG_RULE, Reference, is_tag
from builder.parallel import Stopped, in_parallel
from builder.progress import QUIET, Reporter, working
from builder.registry.client import RegistryClient
from builder.registry.known import KnownBlobs
from builder.registry.manifests import ANY, TagMove
from builder.registry.oras import copy_sif, is_sif, pull_sif
from builder.registry.profile import named_credentials
from builder.registry.pull import fetch_layers, pull_image
from builder.registry.push import TRANSFERS, PushReport, push_image
from builder.registry.referrers import Artifact, attach, attach_in_layout
from builder.settings import Settings, expand_home
from builder.store.blobs import Store
from builder.store.files import sha256_file


class RegistryPlace:
    """A repository of a registry.

    Args:
        client: the registry.
        repository: in that registry.
        store: receives what is pulled.
        known: where blobs are that this command has pushed; receives those of further pushes.
        reporter: receives progress.
    """

    def __init__(
        self,
        client: RegistryClient,
        repository: str,
        store: Store,
        *,
        known: KnownBlobs | None = None,
        reporter: Reporter = QUIET,
    ) -> None:
        self.client = client
        self.repository = repository
        self._store = store
        self._known = KnownBlobs() if known is None else known
        self._reporter = reporter

    @property
    def name(self) -> str:
        """``host/repository``."""
        return f"{self.client.host}/{self.repository}"

    def close(self) -> None:
        """Close the connections to the registry."""
        self.client.close()

    def prepare_push(self) -> None:
        """Announce a push before the first request: one token is enough for all requests."""
        self.client.expect_push(self.repository)

    def resolve(self, ref: str) -> Descriptor | None:
        """Return the manifest or index of a tag or digest; None when it does not exist."""
        return self.client.manifests.head(self.repository, ref)

    def manifest(self, descriptor: Descriptor) -> bytes:
        """Return a manifest or index, verified."""
        path = self._store.get(descriptor.digest)
        if path is not None:
            return read_file(path, str(path))
        data, _, _ = self.client.manifests.get(self.repository, descriptor.digest)
        self._store.add(data)
        return data

    def image(self, digest: str, architecture: str) -> Image:
        """Return an image with all its layers on this machine, verified."""
        return pull_image(
            self.client, self.repository, digest, architecture, self._store, self._reporter
        )

    def sif(self, layer: Descriptor, output: Path) -> bool:
        """Bring a SIF to ``output``; returns whether anything was transferred."""
        return pull_sif(self.client, self.repository, layer, output, self._store, self._reporter)

    def push(self, image: Image) -> PushReport:
        """Add everything except the tags: afterwards the image can be pulled by its digest."""
        return push_image(
            image,
            self.client,
            self.repository,
            known=self._known,
            reporter=self._reporter,
        )

    def attach(self, subject: Descriptor, artifact: Artifact) -> str:
        """Attach files to an image that was pushed; returns the artifact's digest.

        Raises:
            ArtifactRefused: the registry accepts container images only.
        """
        return attach(self.client, self.repository, subject, artifact)

    def read_back(self, image: Image, blobs: Sequence[Descriptor]) -> None:
        """Read the manifest and some blobs of a pushed image, every byte; nothing is stored."""
        task = f"reading back {self.name}"
        stop = threading.Event()

        def advance(amount: int) -> None:
            if stop.is_set():
                raise Stopped
            self._reporter.advance(task, amount)

        def check(blob: Descriptor) -> None:
            digest, size = self.client.blobs.hash(self.repository, blob, advance)
            if digest != blob.digest:
                raise RegistryError(
                    f"{self.name} returned {size} bytes with the digest {digest} for the blob {blob.digest} "
                    f"of {blob.size} bytes",
                    "nobody could pull this image, so no tag was moved; publish again, and if this happens "
                    "again, ask the registry's owner to delete that blob",
                    host=self.client.host,
                )

        with working(self._reporter, task, sum(blob.size for blob in blobs)):
            self.client.manifests.get(self.repository, image.digest)
            in_parallel(check, sorted(blobs, key=lambda blob: -blob.size), TRANSFERS, stop)

    def move_tag(self, tag: str, image: Image, expected: str | None = ANY) -> TagMove:
        """Point a tag at an image that was pushed, unless the tag is not as expected.

        Args:
            tag: the tag.
            image: the image.
            expected: the digest that the tag must name before; None: the tag must not exist;
                ``ANY``: it is moved in any case.
        """
        media_type = image.manifest_descriptor.media_type
        return self.client.manifests.move_tag(
            self.repository, tag, image.manifest, media_type, expected=expected
        )


class LayoutPlace:
    """An OCI layout in a folder, created when the first image is published: no server is needed.

    Args:
        folder: the layout.
        store: records which files were verified, and receives base layers that must be downloaded.
        settings: its ``offline`` forbids downloads of base layers.
        reporter: receives progress.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        settings: Settings | None = None,
        reporter: Reporter = QUIET,
    ) -> None:
        self.folder = folder
        self._store = store
        self._settings = settings
        self._reporter = reporter

    @property
    def name(self) -> str:
        """``oci:DIR``."""
        return f"oci:{self.folder}"

    def close(self) -> None:
        """Do nothing: a folder has no connections."""

    def prepare_push(self) -> None:
        """Do nothing."""

    def resolve(self, ref: str) -> Descriptor | None:
        """Return the manifest or index of a tag or digest; None when there is none."""
        if not (self.folder / "index.json").exists():
            return None
        entries = read_index(self.folder)["manifests"]
        known = {*list_tags(self.folder), *(str(entry["digest"]) for entry in entries)}
        return choose(entries, ref, str(self.folder)) if ref in known else None

    def manifest(self, descriptor: Descriptor) -> bytes:
        """Return a manifest or index, verified."""
        return read_blob(self.folder, descriptor)

    def image(self, digest: str, architecture: str) -> Image:
        """Return an image with all its layers on this machine, verified."""
        image = read_layout(self.folder, digest, architecture)
        with working(self._reporter, f"verifying {self.name}"):
            verify_layers(image, self.folder, self._store)
        return image

    def sif(self, layer: Descriptor, output: Path) -> bool:
        """Bring a SIF to ``output``; returns whether anything was transferred."""
        with working(self._reporter, f"copying {output.name}"):
            return copy_sif(blob_path(self.folder, layer.digest), layer, output, self._store)

    def push(self, image: Image) -> PushReport:
        """Add everything except the tags: afterwards the image can be pulled by its digest."""
        started = time.monotonic()
        blobs = {layer.descriptor.digest: layer.descriptor for layer in image.layers}
        blobs[image.config_descriptor.digest] = image.config_descriptor
        missing = [blob for blob in blobs.values() if not self._has(blob)]
        with working(self._reporter, f"writing into {self.name}"):
            write_layout(self._complete(image), self.folder, None, self._store)
        return PushReport(
            image.digest,
            sent=tuple(missing),
            blobs_present=len(blobs) - len(missing),
            seconds=time.monotonic() - started,
        )

    def attach(self, subject: Descriptor, artifact: Artifact) -> str:
        """Attach files to an image of the layout; returns the artifact's digest."""
        return attach_in_layout(self.folder, self._store, subject, artifact)

    def read_back(self, image: Image, blobs: Sequence[Descriptor]) -> None:
        """Read the manifest and some blobs of a pushed image, every byte; nothing is stored."""
        read_blob(self.folder, image.manifest_descriptor)
        task = f"reading back {self.name}"

        def check(blob: Descriptor) -> None:
            path = blob_path(self.folder, blob.digest)
            if not path.is_file() or sha256_file(path) != blob.digest:
                raise ImageError(
                    f"{path} is missing or corrupt: its content does not match its digest",
                    "no tag was moved; the disk, or the build's own file in the cache, is damaged: "
                    "remove the file, run builder cache prune --all, and publish again",
                )
            self._reporter.advance(task, blob.size)

        with working(self._reporter, task, sum(blob.size for blob in blobs)):
            in_parallel(check, blobs, TRANSFERS)

    def move_tag(self, tag: str, image: Image, expected: str | None = ANY) -> TagMove:
        """Point a tag at an image of the layout, unless the tag is not as expected."""
        if not is_tag(tag):
            raise UsageError(f"{tag!r} is not a tag", TAG_RULE)
        before, now = move_layout_tag(
            self.folder,
            tag,
            image.manifest_descriptor,
            lambda found: expected in (ANY, found),
        )
        return TagMove(before, now, written=before != now)

    def _complete(self, image: Image) -> Image:
        """Return the image with all its layers as files: those of the layout, the store, and the
        rest downloaded.
        """
        layers = tuple(self._local(layer) for layer in image.layers)
        return fetch_layers(
            replace(image, layers=layers), self._store, self._settings, self._reporter
        )

    def _local(self, layer: Layer) -> Layer:
        """Return the layer with the layout's own file where that is needed.

        A SIF outside of the store (in ``dist/``) is copied, never linked: signing it later would
        change it in place.
        """
        digest = layer.descriptor.digest
        own = blob_path(self.folder, digest)
        if layer.path is None:
            return replace(layer, path=own) if self._has(layer.descriptor) else layer
        if is_sif(layer.descriptor) and layer.path not in (own, self._store.path(digest)):
            copy_sif(layer.path, layer.descriptor, own, self._store)
            return replace(layer, path=own)
        return layer

    def _has(self, blob: Descriptor) -> bool:
        path = blob_path(self.folder, blob.digest)
        return path.is_file() and path.stat().st_size == blob.size


#: A place that holds images by digest, and tags that name them.
Place = RegistryPlace | LayoutPlace


def verify_layers(image: Image, folder: Path, store: Store) -> None:
    """Raise ImageError unless every layer of an image in a layout matches its digest."""
    for layer in image.layers:
        assert layer.path is not None
        if not store.verify(layer.path, layer.descriptor.digest):
            raise ImageError(
                f"{layer.path} is corrupt: its content does not match its digest",
                f"{folder} is damaged: publish or pull again",
            )


def open_place(
    text: str,
    settings: Settings,
    store: Store,
    *,
    known: KnownBlobs | None = None,
    option: str = "--to",
    reporter: Reporter = QUIET,
) -> Place:
    """Return the place that ``oci:DIR`` or ``host/repository`` names.

    Args:
        text: the place, without a tag.
        settings: its ``offline`` forbids registries on other machines.
        store: of this machine.
        known: see :class:`RegistryPlace`.
        option: the command-line option that ``text`` comes from, for messages.
        reporter: receives progress and warnings.

    Raises:
        RegistryError: not a reference, only half of the credentials, or forbidden by ``offline``.
        UsageError: no folder follows ``oci:``.
    """
    if text.startswith("oci:"):
        folder = text.removeprefix("oci:")
        if not folder:
            raise UsageError(f"{option} oci: names no folder", "write oci:DIR")
        return LayoutPlace(expand_home(folder), store, settings, reporter)
    reference = Reference.parse(text)
    client = RegistryClient(
        reference.host,
        named_credentials(warn=reporter.warn),
        settings=settings,
        reporter=reporter,
    )
    return RegistryPlace(client, reference.repository, store, known=known, reporter=reporter)
