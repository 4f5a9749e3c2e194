"""A registry and an OCI layout as places to publish to and pull from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import ImageError
from builder.model import OCI_INDEX, Descriptor, Image
from builder.oci.documents import MAX_DOCUMENT
from builder.publishing.places import LayoutPlace, Place, RegistryPlace
from builder.registry.client import RegistryClient
from builder.registry.known import KnownBlobs
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.fakeregistry import FakeRegistry, Reply
from tests.support.images import make_layer, make_test_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", f"l{i}", 1000 * (i + 1)) for i in range(5)])


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(cache=folder / "cache", tmpdir=folder / "cache/tmp", jobs=2, **more)


def digest_of(place: Place, tag: str) -> str | None:
    found = place.resolve(tag)
    return found.digest if found else None


def test_registry_and_layout(
    fake: FakeRegistry, client: RegistryClient, image: Image, tmp_path: Path
) -> None:
    """A registry and an OCI layout behave in the same way."""
    store = Store(tmp_path / "cache")
    for there in (RegistryPlace(client, "a/b", store), LayoutPlace(tmp_path / "layout", store)):
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
    with pytest.raises(ImageError, match="is too large"):
        RegistryPlace(client, "a/b", store).manifest(Descriptor(OCI_INDEX, digest, 10))


@pytest.mark.parametrize(
    ("status", "expected"), [(200, True), (401, False), (403, False), (404, False)], ids=str
)
def test_has_base(
    fake: FakeRegistry, client: RegistryClient, image: Image, tmp_path: Path, status: int, expected: bool
) -> None:
    """A base counts as present only where this user can read it in the same registry."""
    base = replace(image.layers[0], path=None, origin=f"{fake.host}/bases/os")
    left = replace(image, layers=(base, *image.layers[1:]))
    fake.fault = lambda r: Reply(status) if "/v2/bases/os/blobs/" in r.path else None
    assert RegistryPlace(client, "a/b", Store(tmp_path / "cache")).has_base(left) is expected


def test_has_base_elsewhere(fake: FakeRegistry, client: RegistryClient, image: Image, tmp_path: Path) -> None:
    """A base of another registry counts when this repository, or one that was pushed to, has its layers."""
    base = image.layers[0]
    assert base.path is not None
    left = replace(image, layers=(replace(base, path=None, origin="ghcr.io/bases/os"), *image.layers[1:]))
    store = Store(tmp_path / "cache")
    assert RegistryPlace(client, "a/b", store).has_base(image), "all layers are on this machine"
    assert not RegistryPlace(client, "a/b", store).has_base(left)
    fake.put("c/d", base.path.read_bytes())
    assert not RegistryPlace(client, "a/b", store).has_base(left)
    known = KnownBlobs()
    known.add(client.host, "c/d", [base.descriptor.digest])
    assert RegistryPlace(client, "a/b", store, known=known).has_base(left)
    assert RegistryPlace(client, "c/d", store).has_base(left)
    layout = LayoutPlace(tmp_path / "layout", store)
    assert not layout.has_base(left)
    layout.push(image)
    assert layout.has_base(left)
