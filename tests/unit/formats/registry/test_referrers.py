"""What is attached to images: on registries with and without a list of referrers, and in OCI layouts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import ImageError, RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Image
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import LayoutDestination
from builder.formats.oci.layout import list_tags, prune_layout, read_layout
from builder.formats.registry import referrers as referrers_module
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.formats.registry.errors import ArtifactRefused
from builder.formats.registry.referrers import (
    CREATED,
    Artifact,
    AttachedFile,
    attach,
    attach_in_layout,
    layout_referrers,
    read_attached,
    referrers,
    referrers_tag,
)
from tests.support.fakeregistry import FakeRegistry, Reply, sha256
from tests.support.images import make_layer, make_test_image, push_tagged

REPORT, OTHER = "application/vnd.builder.smoke-report.v1+json", "application/vnd.cyclonedx+json"


def file(text: str, name: str = "report.json") -> AttachedFile:
    return AttachedFile(name, "application/json", text.encode())


@pytest.fixture(params=[True, False], ids=["lists referrers", "by tag"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        fake.lists_referrers = request.param
        yield fake


@pytest.fixture
def client(fake: FakeRegistry) -> Iterator[RegistryClient]:
    with RegistryClient(fake.host, ANONYMOUS, sleep=lambda s: None) as client:
        yield client


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", "one")])


@pytest.fixture
def pushed(image: Image, client: RegistryClient) -> Image:
    push_tagged(image, client, "a/b", ["latest"])
    return image


def test_fetch_by_type(fake: FakeRegistry, client: RegistryClient, pushed: Image) -> None:
    """Attached files are found by type, the newest last, also when the list has several pages."""
    subject = pushed.manifest_descriptor
    artifacts = (
        Artifact(REPORT, [file('{"new": 1}')], {CREATED: "2026-11-01T00:00:00Z"}),
        Artifact(REPORT, [file('{"old": 1}')], {CREATED: "2026-10-01T00:00:00Z"}),
        Artifact(OTHER, [file("{}", "sbom.json"), file("[]", "more.json")]),
    )
    new, old, sbom = (attach(client, "a/b", subject, artifact) for artifact in artifacts)
    on_several_pages = referrers(client, "a/b", subject.digest)
    assert {d.digest for d in on_several_pages} == {new, old, sbom}
    found = read_attached(client, "a/b", pushed.digest, REPORT)
    assert [a.digest for a in found] == [old, new]
    assert found[1].files == (file('{"new": 1}'),) and found[1].created == "2026-11-01T00:00:00Z"
    (other,) = read_attached(client, "a/b", subject.digest, OTHER)
    assert [f.name for f in other.files] == ["sbom.json", "more.json"]
    assert read_attached(client, "a/b", pushed.digest, "application/none") == []
    assert client.manifests.head("a/b", "latest").digest == pushed.digest  # type: ignore[union-attr]


def test_attach_twice(fake: FakeRegistry, client: RegistryClient, pushed: Image) -> None:
    """The same files attached again are neither sent nor listed again."""
    first = attach(client, "a/b", pushed.manifest_descriptor, Artifact(REPORT, [file("{}")]))
    fake.requests.clear()
    assert attach(client, "a/b", pushed.manifest_descriptor, Artifact(REPORT, [file("{}")])) == first
    assert {r.method for r in fake.requests} <= {"GET", "HEAD"}
    assert [d.digest for d in referrers(client, "a/b", pushed.digest)] == [first]


def put(fake: FakeRegistry, tag: str, data: bytes, media_type: str = OCI_INDEX) -> None:
    """What somebody else puts into the registry."""
    fake.manifests["a/b"][tag] = fake.manifests["a/b"][sha256(data)] = (data, media_type)


by_tag = pytest.mark.parametrize("fake", [False], indirect=True, ids=["by tag"])


@by_tag
def test_entries_of_others(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """Entries of others in the list under the tag stay."""
    theirs = {
        "mediaType": OCI_MANIFEST,
        "digest": "sha256:" + "1" * 64,
        "size": 7,
        "artifactType": "application/vnd.theirs",
    }
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [theirs]}
    client.manifests.put("a/b", referrers_tag(pushed.digest), json.dumps(index).encode(), OCI_INDEX)
    ours = attach(client, "a/b", pushed.manifest_descriptor, Artifact(REPORT, [file("{}")]))
    assert [d.digest for d in referrers(client, "a/b", pushed.digest)] == [theirs["digest"], ours]


@by_tag
@pytest.mark.parametrize(
    "answer",
    [
        *(Reply(status, body=b"<html>what?</html>") for status in (400, 403, 404, 405, 406, 501)),
        Reply(200, {"Content-Type": OCI_INDEX}),
        Reply(200, {"Content-Type": OCI_INDEX}, b'{"schemaVersion":2,"manifests":[]}'),
    ],
    ids=["400", "403", "404", "405", "406", "501", "nothing", "empty list"],
)
def test_no_list(client: RegistryClient, fake: FakeRegistry, pushed: Image, answer: Reply) -> None:
    """Every response without a list, or with none of its entries, leads to the list under the tag."""
    fake.fault = lambda r: answer if "/referrers/" in r.path else None
    ours = attach(client, "a/b", pushed.manifest_descriptor, Artifact(REPORT, [file("{}")]))
    assert [d.digest for d in referrers(client, "a/b", pushed.digest)] == [ours]


def test_images_only(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """A registry that accepts images only is a special error."""
    fake.fault = lambda r: (
        Reply(400, body=b'{"errors":[{"code":"MANIFEST_INVALID","message":"config media type"}]}')
        if r.method == "PUT" and "/manifests/" in r.path
        else None
    )
    with pytest.raises(ArtifactRefused, match="MANIFEST_INVALID: config media type"):
        attach(client, "a/b", pushed.manifest_descriptor, Artifact(REPORT, [file("{}")]))


@by_tag
def test_damaged_lists(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """A damaged list and another manifest under the tag are errors."""
    for damaged in (b'{"manifests": 3}', b"[]", b"[" * 200_000, b'{"manifests": [{"digest": 1, "size": 2}]}'):
        put(fake, referrers_tag(pushed.digest), damaged)
        with pytest.raises((RegistryError, ImageError), match="the list of attached artifacts|JSON|nested"):
            read_attached(client, "a/b", pushed.digest, REPORT)
    put(fake, referrers_tag(pushed.digest), b'{"manifests": null}')
    assert read_attached(client, "a/b", pushed.digest, REPORT) == []
    put(fake, referrers_tag(pushed.digest), pushed.manifest, OCI_MANIFEST)
    with pytest.raises(RegistryError, match="is not a list of attached artifacts"):
        read_attached(client, "a/b", pushed.digest, REPORT)


@by_tag
@pytest.mark.parametrize("bound", ["MAX_SMALL_BLOB", "MAX_ATTACHED"])
def test_large_attachments(
    client: RegistryClient,
    fake: FakeRegistry,
    pushed: Image,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
) -> None:
    """The files of one artifact, and those of all of them, are read up to a limit."""
    for text in ("1", "2"):
        artifact = Artifact(REPORT, [file("{}"), file(text * 60, "more")])
        attach(client, "a/b", pushed.manifest_descriptor, artifact)
    assert len(read_attached(client, "a/b", pushed.digest, REPORT)) == 2
    monkeypatch.setattr(referrers_module, bound, 61 if bound == "MAX_SMALL_BLOB" else 123)
    with pytest.raises(RegistryError, match=r"what is attached to .*a/b.* is too large"):
        read_attached(client, "a/b", pushed.digest, REPORT)


# layouts ----------------------------------------------------------------------------------------------------


def test_layout(image: Image, tmp_path: Path) -> None:
    """A layout lists artifacts beside its images, and pruning retains them."""
    folder, store = tmp_path / "layout", Store(tmp_path / "cache")
    place = LayoutDestination(folder, store)
    place.push(image)
    place.move_tag("latest", image)
    report = Artifact(REPORT, [file('{"a": 1}')], {CREATED: "2026-10"})
    first = place.attach(image.manifest_descriptor, report)
    assert attach_in_layout(folder, store, image.manifest_descriptor, report) == first
    place.attach(image.manifest_descriptor, Artifact(OTHER, [file("{}")]))
    assert [d.digest for d in layout_referrers(folder, image.digest, REPORT)] == [first]
    assert len(layout_referrers(folder, image.digest)) == 2
    assert layout_referrers(folder, "sha256:" + "0" * 64) == []
    (found,) = place.attached_to(image.digest, REPORT)
    assert found.files == (file('{"a": 1}'),) and found.created == "2026-10"
    assert list_tags(folder) == {"latest": image.digest}
    assert read_layout(folder).digest == image.digest, "the only image is found without its tag still"
    assert prune_layout(folder) == 0
    assert len(place.attached_to(image.digest, REPORT)) == 1, "they belong to what is in use"
