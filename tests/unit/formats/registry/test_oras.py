"""SIFs on their way to a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.model import OCI_CONFIG, Descriptor, Layer
from builder.core.store.blobs import Store
from builder.formats.oci.image import assemble
from builder.formats.registry.oras import SIF_LAYER, copy_sif, sif_layer


@pytest.mark.parametrize(
    ("media_type", "is_sif"),
    [
        (SIF_LAYER, True),
        ("appliciation/vnd.sylabs.sif.layer.tar", True),  # sic: Singularity before 3.7
        ("application/vnd.oci.image.layer.v1.tar", False),
        ("application/octet-stream", False),
    ],
)
@pytest.mark.parametrize("config", ["application/vnd.unknown.config.v1+json", OCI_CONFIG])
def test_media_types(media_type: str, is_sif: bool, config: str) -> None:
    """A SIF is known by the type of its layer, whatever the type of the config is."""
    layer = Descriptor.of(media_type, b"SIF")
    image = assemble([Layer(layer, layer.digest)], b"{}", config)
    found = sif_layer(image.manifest, image.manifest_descriptor, "here")
    assert found == (layer if is_sif else None)


def test_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIF is on the disk before it gets its name, and then the name."""
    data = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0 and so on"
    blob, output = tmp_path / "blob", tmp_path / "dist" / "t.sif"
    blob.write_bytes(data)
    done: list[str] = []
    rename = Path.replace

    def sync(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        done.append("sync the file" if ".part" in name else "sync the folder")

    def renamed(path: Path, target: Path) -> Path:
        if target == output:
            done.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", renamed)
    store = Store(tmp_path / "cache")
    assert copy_sif(blob, Descriptor.of(SIF_LAYER, data), output, store)
    assert done == ["sync the file", "rename", "sync the folder"] and output.read_bytes() == data
    assert not copy_sif(blob, Descriptor.of(SIF_LAYER, data), output, store)
