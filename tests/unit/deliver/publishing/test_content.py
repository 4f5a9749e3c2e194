"""A registry and an OCI layout as destinations: content and tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import ImageError
from builder.core.model import OCI_INDEX, Descriptor, Image
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import LayoutDestination, PublishDestination, RegistryDestination
from builder.formats.oci.documents import MAX_DOCUMENT
from builder.formats.registry.client import RegistryClient
from tests.support.images import make_layer, make_test_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", f"l{i}", 1000 * (i + 1)) for i in range(5)])


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(cache=folder / "cache", tmpdir=folder / "cache/tmp", jobs=2, **more)


def digest_of(place: PublishDestination, tag: str) -> str | None:
    found = place.resolve(tag)
    return found.digest if found else None


def test_registry_and_layout(client: RegistryClient, image: Image, tmp_path: Path) -> None:
    """A registry and an OCI layout behave in the same way."""
    store = Store(tmp_path / "cache")
    for there in (RegistryDestination(client, "a/b", store), LayoutDestination(tmp_path / "layout", store)):
        assert there.resolve("latest") is None
        first = there.push(image)
        assert there.resolve("latest") is None, "the tags come later"
        there.move_tag("latest", image)
        assert digest_of(there, "latest") == image.digest
        again = there.push(image)
        assert (first.blobs_sent, first.blobs_present, again.blobs_sent, again.blobs_present) == (6, 0, 0, 6)
        assert first.bytes_sent == image.size + image.config_descriptor.size and again.bytes_sent == 0
        other = make_test_image(list(image.layers), label="other")
        assert there.push(other).blobs_sent == 1
        there.move_tag("latest", other)
        assert digest_of(there, "latest") == other.digest


def test_large_manifest_in_the_store(client: RegistryClient, tmp_path: Path) -> None:
    """A registry may name a large blob of this machine as a manifest: it is not read into memory."""
    store = Store(tmp_path / "cache")
    digest = store.add(bytes(MAX_DOCUMENT + 1))
    with pytest.raises(ImageError, match="has more than"):
        RegistryDestination(client, "a/b", store).manifest(Descriptor(OCI_INDEX, digest, 10))
