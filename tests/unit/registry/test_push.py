"""The order and the number of the requests of a push."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.model import Image
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from builder.registry.push import push_image
from builder.settings import Settings
from tests.support.fakeregistry import Cut, FakeRegistry, Reply
from tests.support.images import make_layer, make_test_image, push_tagged


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", f"l{i}", 1000 * (i + 1)) for i in range(5)])


def test_order(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    """The manifest is sent after the blobs, and the tags last."""
    report = push_tagged(image, client, "a/b", ["26.11", "latest"])
    writes = [r.path.rpartition("/")[2] for r in fake.requests if r.method == "PUT"]
    assert len(writes) == 9 and writes[-3:] == [image.digest, "26.11", "latest"]
    assert (
        report.blobs_sent == 6
        and report.bytes_sent == image.size + image.config_descriptor.size
        and report.seconds > 0
    )


def test_same_image_again(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    """Pushing the same image again costs one request, and one for each tag."""
    push_tagged(image, client, "a/b", ["26.11", "latest"])
    fake.requests.clear()
    report = push_tagged(image, client, "a/b", ["26.11", "latest"])
    assert [r.method for r in fake.requests] == ["HEAD"] * 3
    assert (report.blobs_present, report.blobs_sent) == (6, 0)


def test_duplicate_layer(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    """A layer that an image contains twice is sent once."""
    twice = make_test_image([image.layers[0], image.layers[1], image.layers[0]])
    report = push_tagged(twice, client, "a/b", [])
    assert report.blobs_sent == 3 and fake.count("PUT", "/uploads/") == 3


def test_failed_blob(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    """When a blob fails, no manifest is stored and no tag moves."""
    fake.fault = lambda r: (
        Reply(400, body=b'{"errors":[{"code":"DIGEST_INVALID","message":"no"}]}')
        if r.method == "PUT"
        else None
    )
    with pytest.raises(RegistryError, match="DIGEST_INVALID"):
        push_tagged(image, client, "a/b", ["latest"])
    assert not fake.manifests.get("a/b") and fake.count("PUT", "/manifests/") == 0


def test_layer_from_its_origin(client: RegistryClient, fake: FakeRegistry, tmp_path: Path) -> None:
    """A layer that is not on this machine is sent from its registry, also when that connection breaks."""
    layer = make_layer(tmp_path / "layers", "base", 3 << 20)
    assert layer.path is not None
    with FakeRegistry() as origin:
        origin.put("library/base", layer.path.read_bytes())
        origin.fail_once("GET", "/blobs/", Cut(after=1 << 20))
        image = make_test_image([replace(layer, path=None, origin=f"{origin.host}/library/base")])
        report = push_image(image, client, "a/b")
        assert fake.has("a/b", layer.path.read_bytes()) and report.blobs_sent == 2
        assert origin.requests[-1].headers.get("range") is not None, "the rest only is read again"


def test_layer_without_origin(client: RegistryClient, image: Image) -> None:
    """A layer that is neither on this machine nor in a registry is an error."""
    lost = replace(image, layers=(replace(image.layers[0], path=None), *image.layers[1:]))
    with pytest.raises(RegistryError, match="neither on this machine nor in a registry"):
        push_image(lost, client, "a/b")


def test_offline(fake: FakeRegistry, image: Image, tmp_path: Path) -> None:
    """BUILDER_OFFLINE forbids to read base layers from registries on other machines."""
    settings = Settings(tmp_path, tmp_path, 1, offline=True)
    layer = replace(image.layers[0], path=None, origin="ghcr.io/a/b")
    remote = replace(image, layers=(layer, *image.layers[1:]))
    client = RegistryClient(fake.host, ANONYMOUS, settings=settings)
    with client, pytest.raises(RegistryError, match="BUILDER_OFFLINE"):
        push_image(remote, client, "a/b")
    assert fake.count("PUT", "/manifests/") == 0
