"""An OCI layout as a place to publish to: the registry that needs no server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder.errors import UsageError
from builder.model import Descriptor, Image, Layer
from builder.oci.layout import list_tags, write_layout
from builder.oci.reference import is_tag
from builder.progress import QUIET, Reporter
from builder.registry.oras import copy_sif, is_sif
from builder.registry.pull import fetch_layers
from builder.registry.push import PushReport
from builder.registry.referrers import AttachedFile, attach_in_layout
from builder.store.blobs import Store


class LayoutDestination:
    """An OCI layout in a folder, made when the first image comes. See :class:`builder.publishing.destination.Destination`."""

    def __init__(self, folder: Path, store: Store, reporter: Reporter = QUIET) -> None:
        self.folder = folder
        self.store = store
        self.reporter = reporter

    @property
    def name(self) -> str:
        return f"oci:{self.folder}"

    def resolve(self, tag: str) -> str | None:
        return list_tags(self.folder).get(tag) if (self.folder / "index.json").exists() else None

    def push_blobs(self, image: Image) -> PushReport:
        started = time.monotonic()
        blobs = {x.descriptor.digest: x.descriptor.size for x in image.layers}
        blobs[image.config_descriptor.digest] = image.config_descriptor.size
        missing = {digest: size for digest, size in blobs.items() if not self._has(digest, size)}
        write_layout(self._complete(image), self.folder, None, self.store)
        return PushReport(
            image.digest,
            blobs_sent=len(missing),
            bytes_sent=sum(missing.values()),
            blobs_present=len(blobs) - len(missing),
            seconds=time.monotonic() - started,
        )

    def attach(
        self,
        subject: Descriptor,
        artifact_type: str,
        files: Sequence[AttachedFile],
        annotations: Mapping[str, str],
    ) -> str:
        return attach_in_layout(
            self.folder, self.store, subject, artifact_type, files, annotations=annotations
        )

    def move_tag(self, tag: str, image: Image) -> None:
        if not is_tag(tag):
            raise UsageError(f"{tag!r} is not a tag", "a tag has up to 128 letters, digits, '_', '.' and '-'")
        if self.resolve(tag) != image.digest:
            write_layout(self._complete(image), self.folder, tag, self.store)

    def _complete(self, image: Image) -> Image:
        """With the layers that the layout has, and the rest fetched from the base image's registry.

        A file outside the store (a SIF in ``dist/``) is copied, not linked: whoever signs it later writes into it.
        """

        def here(layer: Layer) -> Layer:
            digest, path = layer.descriptor.digest, self._blob(layer.descriptor.digest)
            if (
                layer.path is not None
                and layer.path not in (path, self.store.path(digest))
                and is_sif(layer.descriptor)
            ):
                copy_sif(layer.path, layer.descriptor, path, self.store)
                return replace(layer, path=path)
            return (
                replace(layer, path=path)
                if layer.path is None and self._has(digest, layer.descriptor.size)
                else layer
            )

        return fetch_layers(replace(image, layers=tuple(map(here, image.layers))), self.store, self.reporter)

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.partition(":")[2]

    def _has(self, digest: str, size: int) -> bool:
        path = self._blob(digest)
        return path.is_file() and path.stat().st_size == size
