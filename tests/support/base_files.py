"""Base images as files of each local kind."""

from __future__ import annotations

import json
from pathlib import Path

from builder.build.image.archive import write_docker_archive
from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.formats.oci.layout import write_layout
from builder.formats.trees.inflate import inflate
from tests.support.image_kit import member, tar_bytes


def write_base(kind: str, made: Image, folder: Path) -> str:
    """Writes an image as a file of a kind, and returns the reference relative to the folder."""
    if kind == "oci":
        write_layout(made, folder / "layout", "tiny", Store(folder / "elsewhere"))
        return "oci:layout:tiny"
    if kind == "docker-archive":
        write_docker_archive(made, folder / "image.tar", "builder/tiny:latest")
        return "docker-archive:image.tar"
    docker_save(made, folder / "saved.tar")
    return "docker-archive:saved.tar"


def docker_save(made: Image, file: Path) -> None:
    """Writes an archive as ``docker save`` of Docker 20.10 does: layers uncompressed."""
    files = {}
    for number, one in enumerate(made.layers):
        assert one.path is not None
        files[f"{number}/layer.tar"] = b"".join(inflate(one.path))
    listing = [{"Config": "config.json", "RepoTags": ["x/y:1"], "Layers": list(files)}]
    files |= {"config.json": made.config, "manifest.json": json.dumps(listing).encode()}
    file.write_bytes(tar_bytes(member(name, data) for name, data in files.items()))
