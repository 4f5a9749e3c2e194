"""What is attached to images: on registries with and without a list of referrers, and in OCI layouts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import ImageError, RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Image
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import LayoutDestination, RegistryDestination
from builder.formats.oci.layout import list_tags, prune_layout, read_layout
from builder.formats.registry import referrers as referrers_module
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.formats.registry.errors import ArtifactRefused
from builder.formats.registry.referrers import (
    CREATED,
    Artifact,
    Attached,
    AttachedFile,
    attach,
    attach_in_layout,
    layout_referrers,
    referrers,
    referrers_tag,
)
from tests.support.fakeregistry import FakeRegistry, Reply, Request, sha256
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.reporters import Warnings

REPORT, OTHER = "application/vnd.builder.smoke-report.v1+json", "application/vnd.cyclonedx+json"

TOO_LARGE = r"(what is attached to|the artifact) .*a/b@sha256:.* is too large"


def read_attached(client: RegistryClient, repository: str, digest: str, kind: str) -> list[Attached]:
    return RegistryDestination(client, repository, Store(Path("unused"))).attached_to(digest, kind)


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
    small, whole = 2 * 64 * 1024 - 1, 2 * 62 + 100
    monkeypatch.setattr(referrers_module, bound, small if bound == "MAX_SMALL_BLOB" else whole)
    with pytest.raises(RegistryError, match=TOO_LARGE):
        read_attached(client, "a/b", pushed.digest, REPORT)


def attach_many(client: RegistryClient, image: Image, count: int) -> list[str]:
    """Attach reports of a row of days, the oldest first."""
    return [
        attach(
            client,
            "a/b",
            image.manifest_descriptor,
            Artifact(REPORT, [file(str(day))], {CREATED: f"2026-10-{day:02}"}),
        )
        for day in range(1, count + 1)
    ]


def test_newest_of_many(fake: FakeRegistry, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many artifacts the newest are read, and a warning says that others were not."""
    warnings = Warnings()
    with RegistryClient(fake.host, ANONYMOUS, reporter=warnings) as client:
        push_tagged(image, client, "a/b", ["latest"])
        digests = attach_many(client, image, 5)
        assert [a.digest for a in read_attached(client, "a/b", image.digest, REPORT)] == digests
        assert not warnings.messages
        fake.requests.clear()
        monkeypatch.setattr(referrers_module, "MAX_READ", 2)
        found = read_attached(client, "a/b", image.digest, REPORT)
    assert [a.digest for a in found] == digests[-2:]
    [message] = warnings.messages
    assert message.startswith(f"5 artifacts of one type are attached to {fake.host}/a/b@{image.digest}")
    assert "only the newest 2 are read" in message
    asked = {r.path.rpartition("/")[2] for r in fake.requests if "/manifests/sha256:" in r.path}
    assert asked & set(digests) == set(digests[-2:])


def test_read_together(fake: FakeRegistry, client: RegistryClient, pushed: Image) -> None:
    """Several artifacts are asked for at the same time."""
    attach_many(client, pushed, 2)
    both = threading.Barrier(2, timeout=60)

    def wait(request: Request, status: int, headers: dict[str, Any]) -> int:
        if request.method == "GET" and "/blobs/sha256:" in request.path:
            both.wait()
        return status

    fake.oddity = wait
    assert len(read_attached(client, "a/b", pushed.digest, REPORT)) == 2


def test_annotations_count(client: RegistryClient, pushed: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests count like files, and their annotations are not kept."""
    for text in ("1", "2"):
        artifact = Artifact(REPORT, [file(text)], {"large": text * 5000, CREATED: "2026"})
        attach(client, "a/b", pushed.manifest_descriptor, artifact)
    for found in read_attached(client, "a/b", pushed.digest, REPORT):
        assert found.created == "2026" and "11111" not in repr(found) and "22222" not in repr(found)
        assert 5000 < found.size < 6000
    for bound, most in (("MAX_ATTACHED", 10_000), ("MAX_MANIFEST", 5000)):
        with monkeypatch.context() as context:
            context.setattr(referrers_module, bound, most)
            with pytest.raises(RegistryError, match=TOO_LARGE):
                read_attached(client, "a/b", pushed.digest, REPORT)


def test_sizes_that_are_too_small(
    client: RegistryClient, pushed: Image, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file counts with the bytes that are read of it although its manifest states fewer."""
    made = Artifact(REPORT, [file("x" * 5000)] * 3).image(pushed.manifest_descriptor)
    manifest = json.loads(made.manifest)
    for layer in manifest["layers"]:
        layer["size"] = 1
    fake.put("a/b", b"x" * 5000)
    data = json.dumps(manifest).encode()
    put(fake, sha256(data), data, OCI_MANIFEST)
    place = RegistryDestination(client, "a/b", Store(Path("unused")))
    assert len(place.artifact(sha256(data)).files) == 3
    monkeypatch.setattr(referrers_module, "MAX_SMALL_BLOB", 3 * 64 * 1024 - 1)
    with pytest.raises(RegistryError, match="too large"):
        place.artifact(sha256(data))


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
    assert place.artifact(first) == found and place.listed(image.digest, REPORT)[-1].digest == first
    with pytest.raises(ImageError, match="has no sha256:000"):
        place.artifact("sha256:" + "0" * 64)
    assert list_tags(folder) == {"latest": image.digest}
    assert read_layout(folder).digest == image.digest, "the only image is found without its tag still"
    assert prune_layout(folder) == 0
    assert len(place.attached_to(image.digest, REPORT)) == 1, "they belong to what is in use"
