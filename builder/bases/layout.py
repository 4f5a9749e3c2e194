"""``oci:`` bases: images in OCI layouts on disk."""

from __future__ import annotations

from pathlib import Path

from builder.bases.image import BaseImage
from builder.errors import ImageError
from builder.oci.layout import read_layout
from builder.oci.manifest import parse_config
from builder.store.blobs import Store


def open_layout_base(
    reference: str, folder: Path, tag: str | None, architecture: str, store: Store
) -> BaseImage:
    """An image in an OCI layout. Its layers stay there.

    Args:
        reference: for messages.
        folder: the layout.
        tag: a tag or digest; None for the only image.
        architecture: the OCI's name.
        store: knows which layers are verified.

    Raises:
        ImageError: there is no such image, or it is damaged.
    """
    image = read_layout(folder, tag, architecture)
    for layer in image.layers:
        assert layer.path is not None
        if not store.verify(layer.path, layer.descriptor.digest):
            raise ImageError(
                f"base {reference}: {layer.path} is corrupt: its content does not match its digest",
                "write the layout again",
            )
    return BaseImage(reference, image.digest, parse_config(image.config, reference), image.layers)
