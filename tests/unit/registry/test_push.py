"""The order and the number of requests of a push, and destinations."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import ImageError, RegistryError, TagExistsError, UsageError
from builder.model import DOCKER_MANIFEST, OCI_INDEX, Image
from builder.parallel import Stopped, in_parallel
from builder.publishing.places import LayoutPlace, RegistryPlace, open_place
from builder.registry.credentials import ANONYMOUS
from builder.registry.client import RegistryClient
from builder.registry.pull import pull_image
from builder.registry.push import push_image
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, sha256
from tests.support.images import make_layer, make_test_image, push_tagged


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def client(fake: FakeRegistry) -> Iterator[RegistryClient]:
    with RegistryClient(fake.host, ANONYMOUS, sleep=lambda s: None) as client:
        client.ping()
        fake.requests.clear()
        yield client


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", f"l{i}", 1000 * (i + 1)) for i in range(5)])


def test_the_manifest_comes_after_the_blobs_and_the_tags_last(
    fake: FakeRegistry, client: RegistryClient, image: Image
) -> None:
    report = push_tagged(image, client, "a/b", ["26.11", "latest"])
    writes = [r.path.rpartition("/")[2] for r in fake.requests if r.method == "PUT"]
    assert len(writes) == 9 and writes[-3:] == [image.digest, "26.11", "latest"]
    assert (
        report.blobs_sent == 6
        and report.bytes_sent == image.size + image.config_descriptor.size
        and report.seconds > 0
    )


def test_the_same_again_costs_one_request_and_one_for_each_tag(
    fake: FakeRegistry, client: RegistryClient, image: Image
) -> None:
    push_tagged(image, client, "a/b", ["26.11", "latest"])
    fake.requests.clear()
    report = push_tagged(image, client, "a/b", ["26.11", "latest"])
    assert [r.method for r in fake.requests] == ["HEAD"] * 3
    assert (report.blobs_present, report.blobs_sent) == (6, 0)


def test_a_layer_that_comes_twice_is_sent_once(
    fake: FakeRegistry, client: RegistryClient, image: Image
) -> None:
    twice = make_test_image([image.layers[0], image.layers[1], image.layers[0]])
    report = push_tagged(twice, client, "a/b", [])
    assert report.blobs_sent == 3 and fake.count("PUT", "/uploads/") == 3


def test_no_tag_moves_when_a_blob_fails(fake: FakeRegistry, client: RegistryClient, image: Image) -> None:
    fake.fault = lambda r: (
        Reply(400, body=b'{"errors":[{"code":"DIGEST_INVALID","message":"no"}]}')
        if r.method == "PUT"
        else None
    )
    with pytest.raises(RegistryError, match="DIGEST_INVALID"):
        push_tagged(image, client, "a/b", ["latest"])
    assert not fake.manifests.get("a/b") and fake.count("PUT", "/manifests/") == 0


def test_a_tag_that_must_not_move_is_seen_first(
    fake: FakeRegistry, client: RegistryClient, image: Image
) -> None:
    fake.manifests["a/b"] = {"26.11": (b"{}", DOCKER_MANIFEST)}
    with pytest.raises(TagExistsError):
        push_tagged(image, client, "a/b", ["latest", "26.11"], immutable=lambda tag: tag == "26.11")
    assert [r.method for r in fake.requests] == ["HEAD"]


def test_a_layer_streams_through_from_its_origin_and_survives_a_cut(
    client: RegistryClient, fake: FakeRegistry, tmp_path: Path
) -> None:
    layer = make_layer(tmp_path / "layers", "base", 3 << 20)
    assert layer.path is not None
    with FakeRegistry() as origin:
        origin.put("library/base", layer.path.read_bytes())
        origin.fail_once("GET", "/blobs/", Cut(after=1 << 20))
        image = make_test_image([replace(layer, path=None, origin=f"{origin.host}/library/base")])
        report = push_image(image, client, "a/b")
        assert fake.has("a/b", layer.path.read_bytes()) and report.blobs_sent == 2
        assert origin.requests[-1].headers.get("range") is not None, "the rest only is read again"


def test_a_layer_from_nowhere(client: RegistryClient, image: Image) -> None:
    lost = replace(image, layers=(replace(image.layers[0], path=None), *image.layers[1:]))
    with pytest.raises(RegistryError, match="neither on this machine nor in a registry"):
        push_image(lost, client, "a/b")


def test_the_first_failure_ends_the_others() -> None:
    stop = threading.Event()
    begun = []

    def work(n: int) -> int:
        begun.append(n)
        if n == 0:
            raise RegistryError("first")
        if not stop.wait(10):
            raise AssertionError("was not told to stop")
        raise Stopped

    started = time.monotonic()
    with pytest.raises(RegistryError, match="first"):
        in_parallel(work, range(50), 4, stop)
    assert time.monotonic() - started < 5 and len(begun) < 50


def test_results_keep_their_order() -> None:
    assert in_parallel(lambda n: n * n, range(20), 4) == [(n, n * n) for n in range(20)]
    assert in_parallel(lambda n: n, [], 4) == []


# pulling


def test_an_index_gives_the_image_of_the_architecture(
    fake: FakeRegistry, client: RegistryClient, image: Image, tmp_path: Path
) -> None:
    push_tagged(image, client, "a/b", [])
    index = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [
            {
                **image.manifest_descriptor.to_json(),
                "digest": sha256(b"other"),
                "platform": {"os": "linux", "architecture": "arm64"},
            },
            {**image.manifest_descriptor.to_json(), "platform": {"os": "linux", "architecture": "amd64"}},
        ],
    }
    client.put_manifest("a/b", "multi", json.dumps(index).encode(), OCI_INDEX)
    store = Store(tmp_path / "cache")
    assert pull_image(client, "a/b", "multi", "amd64", store).layers[0].path is not None
    assert pull_image(client, "a/b", "multi", "amd64", store).digest == image.digest
    with pytest.raises(ImageError, match="ppc64le"):
        pull_image(client, "a/b", "multi", "ppc64le", store)


def test_what_is_no_image_is_said(client: RegistryClient, tmp_path: Path) -> None:
    client.put_manifest("a/b", "old", b"{}", "application/vnd.docker.distribution.manifest.v1+prettyjws")
    with pytest.raises(RegistryError, match="not an image") as caught:
        pull_image(client, "a/b", "old", "amd64", Store(tmp_path))
    assert "schema 2" in caught.value.hint


# destinations


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(cache=folder / "cache", tmpdir=folder / "cache/tmp", jobs=2, **more)


def test_registry_and_layout_behave_the_same(
    fake: FakeRegistry, client: RegistryClient, image: Image, tmp_path: Path
) -> None:
    store = Store(tmp_path / "cache")
    for there in (RegistryPlace(client, "a/b", store), LayoutPlace(tmp_path / "layout", store)):
        assert there.resolve("latest") is None
        first = there.push(image)
        assert there.resolve("latest") is None, "the tags come later"
        there.move_tag("latest", image)
        assert digest(there, "latest") == image.digest
        again = there.push(image)
        assert (first.blobs_sent, first.blobs_present, again.blobs_sent, again.blobs_present) == (6, 0, 0, 6)
        assert first.bytes_sent == image.size + image.config_descriptor.size and again.bytes_sent == 0
        other = make_test_image(list(image.layers), label="other")
        assert there.push(other).blobs_sent == 1
        there.move_tag("latest", other)
        assert digest(there, "latest") == other.digest


def test_what_names_a_destination(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    assert open_place(f"oci:{tmp_path}/x", settings(tmp_path), store).name == f"oci:{tmp_path}/x"
    assert open_place("127.0.0.1:5000/a/b", settings(tmp_path), store).name == "127.0.0.1:5000/a/b"
    for text, says in (("oci:", "names no folder"), ("127.0.0.1:5000/a:tag", "write 127.0.0.1:5000/a")):
        with pytest.raises(UsageError, match=says):
            open_place(text, settings(tmp_path), store)
    with pytest.raises(RegistryError, match="BUILDER_OFFLINE"):
        open_place("ghcr.io/a/b", settings(tmp_path, offline=True), store)
    with pytest.raises(UsageError, match="is not a tag"):
        LayoutPlace(tmp_path / "x", store).move_tag("a b", make_test_image([]))
