"""Blobs of random bytes, and their upload with a check of the reported progress."""

from __future__ import annotations

import random
from pathlib import Path

from builder.core.model import OCI_LAYER_GZIP, Descriptor
from builder.formats.registry.client import RegistryClient
from tests.support.fakeregistry import sha256

MIB = 1 << 20


def described(data: bytes) -> Descriptor:
    """The descriptor of a blob."""
    return Descriptor(OCI_LAYER_GZIP, sha256(data), len(data))


def random_blob(folder: Path, size: int) -> tuple[Path, bytes]:
    """A file of random bytes, the same for the same size, and its content."""
    data = random.Random(size).randbytes(size)
    path = folder / f"blob-{size}"
    path.write_bytes(data)
    return path, data


def upload(client: RegistryClient, path: Path, data: bytes) -> list[int]:
    """Uploads a file into ``a/b``; returns the reported progress, whose sum must be the size."""
    reported: list[int] = []
    client.blobs.upload_file("a/b", described(data), path, reported.append)
    assert sum(reported) == len(data), "progress adds up, whatever was sent twice"
    return reported
