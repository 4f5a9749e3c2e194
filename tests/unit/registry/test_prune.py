"""Deleting from a registry what a retention rule does not keep."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.model import OCI_INDEX, Image, canonical_json
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS, Credentials
from builder.registry.prune import Pruning, plan_pruning, prune_repository
from builder.registry.referrers import AttachedFile, attach, referrers, referrers_tag
from builder.registry.retention import Keep
from tests.support.fakeregistry import FakeRegistry, Reply, sha256
from tests.support.images import make_layer, make_test_image, push_tagged

TODAY = datetime.date(2026, 11, 23)
REPORT = "application/vnd.builder.smoke-report.v1+json"
REPO = "team/images"


@pytest.fixture(params=[True, False], ids=["lists referrers", "by tag"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        fake.lists_referrers = request.param
        yield fake


@pytest.fixture
def client(fake: FakeRegistry) -> Iterator[RegistryClient]:
    with RegistryClient(fake.host, ANONYMOUS, sleep=lambda s: None) as client:
        yield client


def pushed(client: RegistryClient, folder: Path, label: str, *tags: str) -> Image:
    """An image with these tags, and a report that is attached to it."""
    image = make_test_image([make_layer(folder, "layer")], label)
    push_tagged(image, client, REPO, tags)
    attach(client, REPO, image.manifest_descriptor, REPORT, [AttachedFile("r", REPORT, label.encode())])
    return image


def index(client: RegistryClient, tag: str, *images: Image) -> str:
    manifests = [image.manifest_descriptor.to_json() for image in images]
    data = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
    return client.put_manifest(REPO, tag, data, OCI_INDEX)


def plan(client: RegistryClient) -> Pruning:
    return plan_pruning(client, REPO, Keep(12), TODAY)


def test_images_and_what_is_attached(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """Image, report and list of reports are deleted; those of other images stay."""
    old = pushed(client, tmp_path, "old", "25.01", "25.02")
    new = pushed(client, tmp_path, "new", "26.11", "latest", "25.03")
    pruning = plan(client)
    assert fake.count("DELETE") == 0
    assert pruning.retention.manifests == (old.digest,)
    assert len(pruning.attached) == (1 if fake.lists_referrers else 2)
    deleted: list[str] = []
    prune_repository(client, REPO, pruning, deleted.append)
    assert deleted == [*pruning.attached, old.digest]
    assert client.list_tags(REPO) == ["25.03", "26.11", "latest"]
    assert client.head_manifest(REPO, old.digest) is None
    assert client.head_manifest(REPO, referrers_tag(old.digest)) is None
    assert len(referrers(client, REPO, new.digest)) == 1
    assert plan(client).digests == ()


def test_indexes(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """The reports are attached to the images in an index; an image that another index names stays."""
    a, b, c = (pushed(client, tmp_path, label, f"only-{label}") for label in "abc")
    for label in "abc":
        del fake.manifests[REPO][f"only-{label}"]
    index(client, "26.11", a, b)
    old = index(client, "25.01", c, b)
    pruning = plan(client)
    assert pruning.retention.manifests == (old, c.digest)
    prune_repository(client, REPO, pruning, lambda digest: None)
    left = [client.head_manifest(REPO, digest) is not None for digest in (a.digest, b.digest, c.digest, old)]
    assert left == [True, True, False, False]
    assert [len(referrers(client, REPO, image.digest)) for image in (a, b)] == [1, 1]


def test_nested_index(client: RegistryClient, tmp_path: Path) -> None:
    """What is in an index of a kept index stays."""
    image = pushed(client, tmp_path, "a", "25.01")
    inner = index(client, "25.02", image)
    size = len(client.get_manifest(REPO, inner)[0])
    entry = {"mediaType": OCI_INDEX, "digest": inner, "size": size}
    data = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})
    client.put_manifest(REPO, "latest", data, OCI_INDEX)
    assert plan(client).digests == ()
    assert dict(plan(client).retention.shared) == {"25.01": "latest", "25.02": "latest"}


def test_moved_tag(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """Another client moves a tag after it was looked at: nothing is deleted."""
    pushed(client, tmp_path, "old", "25.01")
    pruning = plan(client)
    pushed(client, tmp_path, "new", "25.01")
    with pytest.raises(RegistryError, match=r"25\.01 was moved while"):
        prune_repository(client, REPO, pruning, lambda digest: None)
    assert fake.count("DELETE") == 0


def test_refused(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A registry that does not delete has a way of its own; what is gone already is no error."""
    pushed(client, tmp_path, "old", "25.01")
    pruning = plan(client)
    fake.deletes = False
    with pytest.raises(RegistryError, match=r"did not delete .*: 405 ") as caught:
        prune_repository(client, REPO, pruning, lambda digest: None)
    assert "retention rule" in caught.value.hint and "storage.delete.enabled" in caught.value.hint
    fake.fail_once("DELETE", "/manifests/", Reply(403))
    with pytest.raises(RegistryError, match=" 403 ") as caught:
        prune_repository(client, REPO, pruning, lambda digest: None)
    assert "retention rule" not in caught.value.hint
    fake.deletes = True
    client.delete_manifest(REPO, sha256(b"nothing"))


def test_permission(tmp_path: Path) -> None:
    """The token is asked for with the permission to delete."""
    user = ("me", "secret")
    with (
        FakeRegistry(token_user=user) as fake,
        RegistryClient(fake.host, Credentials(*user, source="a test"), sleep=lambda s: None) as client,
    ):
        old = pushed(client, tmp_path, "old", "25.01")
        client.delete_manifest(REPO, old.digest)
        assert client.head_manifest(REPO, "25.01") is None
        assert {f"repository:{REPO}:delete,pull"} in fake.valid.values()
