"""``sif:`` bases: SIF files, whose partitions a build copies or reads."""

from __future__ import annotations

from pathlib import Path

from builder.bases.image import BaseImage, no_such_base
from builder.sif.read import open_sif, read_sif
from builder.store.blobs import Store


def open_sif_base(reference: str, path: Path, architecture: str, store: Store) -> BaseImage:
    """A SIF as a base image without layers.

    Args:
        reference: for messages.
        path: the SIF.
        architecture: the OCI's name.
        store: records the digests of SIFs.

    Raises:
        ImageError: the file is missing, not a SIF, damaged, or for another architecture.
    """
    if not path.exists():
        raise no_such_base(reference, path)
    sif = open_sif(path, store, architecture)
    config = {
        **read_sif(path).config(),
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }
    return BaseImage(reference, sif.digest, config, (), sif)
