"""Base images as builds use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.core.errors import ImageError
from builder.core.model import Descriptor, Image, Layer, SifImage
from builder.core.store.blobs import Store
from builder.formats.oci.documents import read_document
from builder.formats.oci.image import plain_image
from builder.formats.oci.manifest import parse_config, read_image


@dataclass(frozen=True, slots=True)
class WantedBase:
    """What an image has to be that is the base of no recipe."""

    architecture: str
    """The OCI's name: ``amd64``, ``arm64``."""
    base_packages: Sequence[str] = ()
    """Debian packages of a ``debian:`` base; others get them as a layer of their own."""
    root: Path = Path()
    """The folder that relative paths start at."""


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A base image that is ready to be built on."""

    reference: str
    """As the lock has it."""
    digest: str
    """Of the platform's manifest; for a SIF, of the file."""
    config: dict[str, Any]
    """The parsed image config; for a SIF, one that is composed from its metadata."""
    layers: tuple[Layer, ...]
    """From the bottom up; empty for a SIF."""
    sif: SifImage | None = None
    """The file of a ``sif:`` base."""
    added: tuple[Layer, ...] = ()
    """Those of ``layers`` that builder made: the OS packages. The image ``digest`` does not have
    them.
    """

    def image(self) -> Image:
        """Return the layers as an image without the base's other metadata."""
        return plain_image(self.layers, self.config)

    @property
    def history(self) -> list[dict[str, Any]] | None:
        """That of its config; None unless it has, as engines require, one entry for each layer."""
        history = self.config.get("history") or []
        layers = sum(not entry.get("empty_layer") for entry in history)
        return list(history) if layers == len(self.layers) else None

    @property
    def runnable(self) -> Image | SifImage:
        """What runners and steps take: the file of a SIF, or the layers as an image."""
        return self.sif or self.image()


def stored_image(reference: str, digest: str, store: Store) -> Image:
    """Return an image whose manifest and config are in the store, with layers that have no paths.

    Raises:
        ImageError: the manifest or config is missing or damaged.
    """
    manifest = _stored(digest, store)
    descriptor = Descriptor("", digest, len(manifest))
    return read_image(manifest, descriptor, lambda d: _stored(d.digest, store), reference)


def stored_base(reference: str, digest: str, store: Store) -> BaseImage:
    """Return a base image whose manifest and config are in the store.

    A layer that neither the store nor a reused image has is without path and origin.

    Raises as :func:`stored_image`.
    """
    image = stored_image(reference, digest, store)
    layers = []
    for layer in image.layers:
        blob = layer.descriptor
        path, origin = store.locate(blob.digest, blob.size, layer.diff_id)
        layers.append(replace(layer, path=path, origin=origin))
    return BaseImage(reference, digest, parse_config(image.config, reference), tuple(layers))


def _stored(digest: str, store: Store) -> bytes:
    path = store.get(digest)
    return b"" if path is None else read_document(path)


def layout_base(reference: str, image: Image, store: Store, *, keep: bool) -> BaseImage:
    """Return an image of an OCI layout as a base. Its layers stay there.

    Args:
        reference: for messages.
        image: the image.
        store: knows which layers are verified.
        keep: whether the image is linked or copied into the store.

    Raises:
        ImageError: it is damaged.
    """
    layers = []
    for layer in image.layers:
        path, digest = layer.path, layer.descriptor.digest
        assert path is not None
        if not store.verify(path, digest):
            raise ImageError(
                f"base {reference}: {path} is corrupt: its content does not match its digest",
                "write the layout again",
            )
        layers.append(replace(layer, path=store.take(path, digest)) if keep else layer)
    for document in (image.manifest, image.config) if keep else ():
        store.add(document)
    config = parse_config(image.config, reference)
    return BaseImage(reference, image.digest, config, tuple(layers))


def no_such_base(reference: str, path: Path) -> ImageError:
    """Return the error for a path of a base reference that does not exist."""
    kind, _, written = reference.partition(":")
    if written.startswith("/"):
        hint = (
            "correct the path; if it is a file of the target machine, run this there, or name a copy of it: "
            f"BUILDER_MIRRORS='{kind}:{written}={kind}:COPY'"
        )
    else:
        hint = "correct the path, relative to the project folder; for oci:dist:NAME: builder build NAME"
    return ImageError(f"base {reference}: {path} does not exist", hint)
