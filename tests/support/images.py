"""Tiny real images for tests (tar+gzip layers, config and manifest), and a push of them with tags."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.core.model import OCI_LAYER_GZIP, Descriptor, Image, Layer
from builder.core.store.blobs import Store
from builder.core.store.records import write_record
from builder.formats.oci.digest import hex_of, sha256
from builder.formats.oci.image import plain_image
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.push import PushReport, push_image
from builder.formats.trees.rootfs import unpack_layer, unpacked_source, write_tree


def make_layer(folder: Path, name: str, size: int = 1000) -> Layer:
    """A layer with one file of ``size`` bytes that do not compress; the same for the same name and size."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        member = tarfile.TarInfo(f"data/{name}")
        member.size = size
        tar.addfile(member, io.BytesIO(random.Random(name).randbytes(size)))
    data = gzip.compress(raw.getvalue(), 1, mtime=0)
    descriptor = Descriptor.of(OCI_LAYER_GZIP, data)
    path = folder / hex_of(descriptor.digest)
    path.write_bytes(data)
    return Layer(descriptor, sha256(raw.getvalue()), path, title=name)


def make_test_image(layers: list[Layer], label: str = "") -> Image:
    """An image for linux/amd64 of these layers; another ``label`` is another digest."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": {"label": label}} if label else {},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created_by": layer.title} for layer in layers],
    }
    return plain_image(layers, config)


def unpack(image: Image, folder: Path, store: Store) -> None:
    """Unpacks an image into a new folder as ``cached_rootfs`` does: each layer alone, then links to them."""
    with tempfile.TemporaryDirectory() as scratch:
        places = [Path(scratch, str(number)) for number in range(len(image.layers))]
        for layer, place in zip(image.layers, places, strict=True):
            unpack_layer(layer, place, store)
        write_tree([unpacked_source(place) for place in places], folder)


def push_tagged(image: Image, client: RegistryClient, repository: str, tags: Sequence[str]) -> PushReport:
    """Pushes an image, then moves tags to it."""
    report = push_image(image, client, repository)
    for tag in tags:
        media_type = image.manifest_descriptor.media_type
        client.manifests.move_tag(repository, tag, image.manifest, media_type)
    return report


def record_contents(store: Store) -> None:
    """Records what is in the package ``aaa...`` and in the base ``eee...``, of which there are no files."""
    write_record(store.folders.index / f"declared-1-sha256-{'a' * 64}.json", [["PSF-2.0"], [], []])
    system = ["debian", "12", [["libc6", "2.36-9", "amd64", "glibc"]]]
    write_record(store.folders.index / f"base-system-1-sha256-{'e' * 64}.json", system)
