"""What is read back after a push, and what happens when it is not what was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ImageError, RegistryError
from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import LayoutDestination, RegistryDestination
from builder.deliver.publishing.read_back import Unverified, push_and_read_back
from builder.formats.oci.layout import blob_path
from builder.formats.registry.client import RegistryClient
from tests.support.fakeregistry import FakeRegistry, Reply, Request
from tests.support.images import make_layer, make_test_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", f"l{i}", 1000 * (i + 1)) for i in range(3)])


@pytest.fixture
def place(client: RegistryClient, tmp_path: Path) -> RegistryDestination:
    return RegistryDestination(client, "a/b", Store(tmp_path / "cache"))


def wider(image: Image, folder: Path) -> Image:
    """The same image with one more layer."""
    return make_test_image([*image.layers, make_layer(folder / "layers", "more", 500)])


def reads(fake: FakeRegistry) -> int:
    return fake.count("GET", "/blobs/sha256:")


def test_sent_blobs_are_read(
    fake: FakeRegistry, place: RegistryDestination, image: Image, tmp_path: Path
) -> None:
    """What was sent is read back, once; an unchanged image needs no reading at all."""
    pushed, verified = push_and_read_back(place, image, tmp_path / "cache")
    assert (verified.blobs, verified.bytes, reads(fake)) == (4, pushed.bytes_sent, 4)
    before = len(fake.requests)
    assert push_and_read_back(place, image, tmp_path / "cache")[1].blobs == 0
    assert reads(fake) == 4 and not any(r.method == "GET" for r in fake.requests[before:])
    more = wider(image, tmp_path)
    verified = push_and_read_back(place, more, tmp_path / "cache")[1]
    assert (verified.blobs, reads(fake)) == (2, 6), "the new layer and the config"
    assert not list((tmp_path / "cache" / "unverified").iterdir())


def damage(fake: FakeRegistry, image: Image, content: bytes | None = None) -> str:
    """Puts other bytes under a layer's digest, by default one bit of them; returns the digest."""
    digest = image.layers[1].descriptor.digest
    data = fake.blobs["a/b"][digest]
    fake.blobs["a/b"][digest] = bytes([data[0] ^ 1]) + data[1:] if content is None else content
    return digest


@pytest.mark.parametrize(
    "content", [None, b"", b"cut", b"x" * 100_000], ids=["bit", "empty", "cut", "longer"]
)
def test_damaged_in_the_registry(
    fake: FakeRegistry, place: RegistryDestination, image: Image, tmp_path: Path, content: bytes | None
) -> None:
    """A registry that damaged a blob is found out, and again by the next publish, which sends nothing."""

    def after_manifest(request: Request) -> Reply | None:
        if request.method == "PUT" and "/manifests/" in request.path:
            damage(fake, image, content)
        return None

    fake.fault = after_manifest
    with pytest.raises(
        RegistryError, match="127.0.0.1:[0-9]+/a/b returned [0-9]+ bytes with the digest"
    ) as e:
        push_and_read_back(place, image, tmp_path / "cache")
    assert image.layers[1].descriptor.digest in e.value.message and "no tag was moved" in e.value.hint


def test_after_a_killed_publish(
    fake: FakeRegistry, place: RegistryDestination, image: Image, tmp_path: Path
) -> None:
    """Blobs of a publish that ended before it read them back are read by the next one, whatever the image."""
    Unverified(tmp_path / "cache", place.name, image).begin()
    place.push(image)  # and the process is killed
    damage(fake, image)
    more = wider(image, tmp_path)
    with pytest.raises(RegistryError, match="with the digest"):
        push_and_read_back(place, more, tmp_path / "cache")
    layer = image.layers[1]
    assert layer.path is not None
    fake.blobs["a/b"][layer.descriptor.digest] = layer.path.read_bytes()
    assert push_and_read_back(place, more, tmp_path / "cache")[1].blobs == 5
    assert push_and_read_back(place, more, tmp_path / "cache")[1].blobs == 0
    (left,) = (tmp_path / "cache" / "unverified").iterdir()  # the config of the image that was not finished
    left.write_text("damaged")
    assert push_and_read_back(place, more, tmp_path / "cache")[1].blobs == 5
    assert not Unverified(tmp_path / "cache", "other.example/c/d", image).left()


def test_layout(image: Image, tmp_path: Path) -> None:
    """A blob of a layout that differs from its digest is found, although its size is right."""
    store = Store(tmp_path / "cache")
    place = LayoutDestination(tmp_path / "layout", store)
    pushed, verified = push_and_read_back(place, image, tmp_path / "cache")
    assert verified.blobs == pushed.blobs_sent == 4
    assert push_and_read_back(place, image, tmp_path / "cache")[1].blobs == 0
    path = blob_path(tmp_path / "layout", image.config_descriptor.digest)
    path.write_bytes(path.read_bytes().replace(b"amd64", b"arm64"))
    with pytest.raises(ImageError, match="is missing or corrupt"):
        place.read_back(image, [image.config_descriptor])
