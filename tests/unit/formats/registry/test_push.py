"""The order and the number of the requests of a push."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import RegistryError
from builder.core.model import Image
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.formats.registry.push import KnownBlobs, push_image
from tests.support.fakeregistry import Cut, FakeRegistry, Reply
from tests.support.images import make_layer, make_test_image, push_tagged


def test_order(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    """The manifest is sent after the blobs, and the tags last."""
    report = push_tagged(image, client, "a/b", ["26.11", "latest"])
    writes = [r.path.rpartition("/")[2] for r in fake.requests if r.method == "PUT"]
    assert len(writes) == 9 and writes[-3:] == [image.digest, "26.11", "latest"]
    assert report.blobs_sent == 6 and report.seconds > 0
    assert report.bytes_sent == image.size + image.config_descriptor.size


def test_log(client: RegistryClient, image: Image, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the number of blobs that are there, mounted and sent."""
    caplog.set_level(logging.INFO, "builder")
    known: KnownBlobs = {}
    for repository, counts in (
        ("a/b", "0 blobs are there, 0 mounted, 6 to send"),
        ("c/d", "0 blobs are there, 6 mounted, 0 to send"),
        ("a/b", "6 blobs are there, 0 mounted, 0 to send"),
    ):
        push_image(image, client, repository, known=known)
        assert f"pushing to {client.host}/{repository}: {counts}" in caplog.messages


@pytest.mark.parametrize("harm", ["lost", "cut"])
def test_harmed_registry(fake: FakeRegistry, client: RegistryClient, image: Image, harm: str) -> None:
    """A registry that lost or cut blobs of an image that it has gets them, and the manifest, again."""
    push_tagged(image, client, "a/b", ["latest"])
    blobs = dict(fake.blobs["a/b"])
    for digest in (image.layers[1].descriptor.digest, image.config_descriptor.digest):
        if harm == "lost":
            del fake.blobs["a/b"][digest]
        else:
            fake.blobs["a/b"][digest] = blobs[digest][:100]
    fake.requests.clear()
    report = push_image(image, client, "a/b")
    assert fake.blobs["a/b"] == blobs and (report.blobs_sent, report.blobs_present) == (2, 4)
    assert fake.requests[-1].path.endswith(image.digest) and fake.requests[-1].method == "PUT"


def test_cut_blob_is_not_mounted(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    """A mount from a repository that holds a part of a layer only does not count."""
    layer = image.layers[0]
    assert layer.path is not None
    fake.blobs["other/repo"] = {layer.descriptor.digest: layer.path.read_bytes()[:50]}
    known = {(client.host, layer.descriptor.digest): "other/repo"}
    report = push_image(image, client, "a/b", known=known)
    assert fake.has("a/b", layer.path.read_bytes()) and (report.blobs_mounted, report.blobs_sent) == (0, 6)


@pytest.mark.parametrize("harm", ["flipped", "short", "gone"])
def test_damaged_layer(fake: FakeRegistry, image: Image, tmp_path: Path, harm: str) -> None:
    """A damaged layer never arrives; it is removed from the store, so that the next build makes it again."""
    settings = Settings(tmp_path / "cache", tmp_path, 1)
    store = Store(settings.cache)
    layer = image.layers[4]
    assert layer.path is not None
    path = store.path(store.add(layer.path.read_bytes()))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    info = path.stat()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(data if harm == "flipped" else data[:-1])
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    if harm == "flipped":
        assert store.get(layer.descriptor.digest) == path, "the store does not notice it"
    cached = replace(image, layers=(*image.layers[:4], replace(layer, path=path)))
    with (
        RegistryClient(fake.host, ANONYMOUS, settings=settings) as client,
        pytest.raises(RegistryError, match=r"was damaged in the cache \(.*\); it was removed") as caught,
    ):
        push_image(cached, client, "a/b")
    assert "build again" in caught.value.hint and not path.exists()
    assert store.get(layer.descriptor.digest) is None
    assert layer.descriptor.digest not in fake.blobs["a/b"] and fake.count("PUT", "/manifests/") == 0


def test_damaged_origin(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    """A base layer that its registry returns with other bytes never arrives; the registry is named."""
    layer = image.layers[0]
    with FakeRegistry() as origin:
        origin.blobs["library/base"] = {layer.descriptor.digest: bytes(layer.descriptor.size)}
        remote = replace(layer, path=None, origin=f"{origin.host}/library/base")
        base = replace(image, layers=(remote, *image.layers[1:]))
        with pytest.raises(RegistryError, match="library/base returned different content") as caught:
            push_image(base, client, "a/b")
        assert caught.value.host == origin.host and origin.host in caught.value.hint
    assert layer.descriptor.digest not in fake.blobs.get("a/b", {})


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


@pytest.mark.parametrize("fault", [Cut(after=1 << 20), Reply(429, {"Retry-After": "7"})], ids=["cut", "busy"])
def test_layer_from_its_origin(
    client: RegistryClient, fake: FakeRegistry, waits: list[float], tmp_path: Path, fault: Cut | Reply
) -> None:
    """A layer that is not on this machine is sent from its registry, also when that breaks or is busy."""
    layer = make_layer(tmp_path / "layers", "base", 3 << 20)
    assert layer.path is not None
    with FakeRegistry() as origin:
        origin.put("library/base", layer.path.read_bytes())
        origin.fail_once("GET", "/blobs/", fault)
        image = make_test_image([replace(layer, path=None, origin=f"{origin.host}/library/base")])
        report = push_image(image, client, "a/b")
        assert fake.has("a/b", layer.path.read_bytes()) and report.blobs_sent == 2
        if isinstance(fault, Cut):
            assert origin.requests[-1].headers.get("range") is not None, "chunks are read one by one"
        else:
            assert 7 in waits
