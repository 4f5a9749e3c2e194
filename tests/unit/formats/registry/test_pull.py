"""Images pulled from a registry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import ImageError, RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Image
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.pull import fetch_layers, pull_image
from tests.support.fakeregistry import FakeRegistry, sha256
from tests.support.images import push_tagged


def test_image_index(fake: FakeRegistry, client: RegistryClient, image: Image, tmp_path: Path) -> None:
    """Of an image index the image for the architecture is pulled."""
    push_tagged(image, client, "a/b", [])
    platform = {"os": "linux", "architecture": "amd64"}
    ours = {**image.manifest_descriptor.to_json(), "platform": platform}
    other = {**ours, "digest": sha256(b"other"), "platform": {**platform, "architecture": "arm64"}}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [other, ours]}
    client.manifests.put("a/b", "multi", json.dumps(index).encode(), OCI_INDEX)
    store = Store(tmp_path / "cache")
    assert pull_image(client, "a/b", "multi", "amd64", store).layers[0].path is not None
    assert pull_image(client, "a/b", "multi", "amd64", store).digest == image.digest
    with pytest.raises(ImageError, match="ppc64le"):
        pull_image(client, "a/b", "multi", "ppc64le", store)


def test_large_config(fake: FakeRegistry, client: RegistryClient, image: Image, store: Store) -> None:
    """A config or manifest beyond the limit is refused by its descriptor: it is not requested."""
    huge = {**image.config_descriptor.to_json(), "size": 2 << 30}
    manifest = json.dumps({**json.loads(image.manifest), "config": huge}).encode()
    client.manifests.put("a/b", "config", manifest, OCI_MANIFEST)
    entry = {**image.manifest_descriptor.to_json(), "platform": {"os": "linux", "architecture": "amd64"}}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [{**entry, "size": 2 << 30}]}
    client.manifests.put("a/b", "index", json.dumps(index).encode(), OCI_INDEX)
    fake.requests.clear()
    for tag in ("config", "index"):
        with pytest.raises(ImageError, match=r"is too large: 2\.1 GB, at most 8\.4 MB"):
            pull_image(client, "a/b", tag, "amd64", store)
    assert [r.path.rpartition("/")[2] for r in fake.requests] == ["config", "index"]


def test_offline(image: Image, store: Store, tmp_path: Path) -> None:
    """BUILDER_OFFLINE forbids the download of layers from registries on other machines."""
    settings = Settings(tmp_path, tmp_path, 1, offline=True)
    layer = replace(image.layers[0], path=None, origin="ghcr.io/a/b")
    remote = replace(image, layers=(layer, *image.layers[1:]))
    with pytest.raises(RegistryError, match="BUILDER_OFFLINE") as caught:
        fetch_layers(remote, store, settings)
    assert caught.value.host == "ghcr.io"
