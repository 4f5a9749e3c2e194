"""SIFs of tiny images, written by builder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.core.model import Compression, Image, Layer, SifImage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.records import read_record
from builder.core.workspace import Workspace
from builder.formats.sif.format import DESCRIPTOR, DESCRIPTORS_AT
from builder.formats.sif.read import read_sif
from builder.formats.sif.write import Layout, write_sif
from tests.support import image_kit as kit
from tests.support.image_kit import layer


def _member(name: str, data: bytes | None = None, mode: int | None = None) -> Any:
    return kit.member(name, data, mode=mode or (0o755 if name.endswith("/") else 0o644))


class Place:
    """A cache and a folder for SIFs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = kit.settings(folder)
        self.store = Store(self.settings.cache)

    def sif(
        self,
        image: Image,
        name: str = "a.sif",
        layout: Layout = "flat",
        compression: Compression = "zstd",
        base: SifImage | None = None,
        settings: Settings | None = None,
    ) -> SifImage:
        """Writes an image as a SIF in the folder."""
        path = self.folder / name
        return write_sif(
            image,
            path,
            Workspace(settings or self.settings, self.store),
            layout=layout,
            compression=compression,
            base=base,
        )

    def image(self, *more: Layer, **recipe: object) -> Image:
        """A base, a prefix, two packages, and builder's own files."""
        layers = [
            layer(
                self.store,
                _member("opt/"),
                _member("opt/conda/"),
                _member("opt/conda/.wh..wh..opq", b""),
                title="environment prefix",
            ),
            self.package("pip numpy 1.0", "numpy"),
            self.package("conda group 1: zlib, xz", "zlib"),
            *more,
            layer(
                self.store,
                _member("opt/"),
                _member("opt/builder/"),
                _member("opt/builder/smoke.py", b"#\n"),
                title="builder: entry point",
            ),
        ]
        bottom = [
            _member("./", mode=0o751),
            _member("etc/"),
            _member("etc/base", b"base\n"),
            _member("tmp/", mode=0o1777),
            _member("opt/"),
            _member("opt/conda/", mode=0o700),
            _member("opt/conda/bin/"),
            _member("opt/conda/bin/python", b"old"),
            _member("opt/conda/old/"),
            _member("opt/conda/old/file", b"old"),
        ]
        base = kit.base(
            layer(self.store, *bottom, title="bottom"), env=["PATH=/usr/bin:/bin", "LANG=C.UTF-8"]
        )
        return kit.image_above(base, layers, **recipe)

    def package(self, title: str, name: str, text: bytes = b"1", size: int = 0) -> Layer:
        """A layer with a package of two files: one is ``text`` and ``size`` incompressible bytes."""
        content = text + random.Random(title).randbytes(size)
        members = [_member(f"{p}/") for p in ("opt", "opt/conda", "opt/conda/bin")]
        members += [
            _member(f"opt/conda/{name}", content),
            _member(f"opt/conda/bin/{name}", b"#!", mode=0o755),
        ]
        return layer(self.store, *members, title=title)

    def partition_records(self) -> dict[str, dict[str, Any]]:
        """The records of all partitions that were made, by file name: digest, size, name."""
        return {path.name: read_record(path) for path in self.store.folders.layers.glob("sif-*.json")}


def partition_names(sif: SifImage) -> list[str]:
    """The names of a SIF's partitions, from the bottom up."""
    return [partition.name for partition in read_sif(sif.path).partitions]


def make_above_sif(place: Place, base: SifImage, **recipe: object) -> Image:
    """An image of packages above a SIF."""
    locked = resolve_base(f"sif:{base.path}", WantedBase("amd64"), Workspace(place.settings, place.store))
    assert locked.digest == base.digest
    opened = open_base(locked, WantedBase("amd64"), Workspace(place.settings, place.store))
    assert opened.sif is not None
    assert (opened.sif.digest, opened.layers) == (base.digest, ())
    whole = place.image(place.package("pip torch 2.0", "torch"))
    return kit.image_above(opened, whole.layers[1:], base=f"sif:{base.path}", **recipe)


def without_descriptors(sif: bytes) -> bytes:
    """A SIF whose definition and JSON objects are marked as unused: what another program may write."""
    data = bytearray(sif)
    for number in range(3):
        data[DESCRIPTORS_AT + number * DESCRIPTOR.size + 4] = 0
    return bytes(data)
