"""Base images as files of each local kind."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from builder.image.archive import write_docker_archive, write_oci_archive
from builder.model import Image
from builder.oci.layout import write_layout
from builder.store.blobs import Store
from builder.trees.inflate import inflate


def write_base(kind: str, made: Image, folder: Path) -> str:
    """Writes an image as a file of a kind, and returns the reference relative to the folder."""
    if kind == "oci":
        write_layout(made, folder / "layout", "tiny", Store(folder / "elsewhere"))
        return "oci:layout:tiny"
    if kind == "oci-archive":
        write_oci_archive(made, folder / "image.tar", "tiny")
        return "oci-archive:image.tar"
    if kind == "docker-archive":
        write_docker_archive(made, folder / "image.tar", "builder/tiny:latest")
        return "docker-archive:image.tar"
    docker_save(made, folder / "saved.tar")
    return "docker-archive:saved.tar"


def docker_save(made: Image, file: Path) -> None:
    """Writes an archive as ``docker save`` of Docker 20.10 does: layers uncompressed."""
    with tarfile.open(file, "w") as tar:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        names = []
        for number, one in enumerate(made.layers):
            assert one.path is not None
            names.append(f"{number}/layer.tar")
            add(names[-1], b"".join(inflate(one.path)))
        add("config.json", made.config)
        add(
            "manifest.json",
            json.dumps([{"Config": "config.json", "RepoTags": ["x/y:1"], "Layers": names}]).encode(),
        )
