"""What is attached to images: on registries with and without a list of referrers, and in OCI layouts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.errors import ImageError, RegistryError, UsageError
from builder.model import OCI_INDEX, OCI_MANIFEST, Image
from builder.oci.documents import MAX_DOCUMENT
from builder.oci.layout import list_tags, prune_layout, read_layout
from builder.publishing.places import LayoutPlace
from builder.registry import referrers as referrers_module
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from builder.registry.errors import ArtifactRefused
from builder.registry.referrers import (
    CREATED,
    AttachedFile,
    attach,
    attach_in_layout,
    fetch_attached,
    layout_referrers,
    referrers,
    referrers_tag,
    restore_attached,
)
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, Request, sha256
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
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path)}, cache=tmp_path / "cache")


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", "one")])


@pytest.fixture
def pushed(image: Image, client: RegistryClient) -> Image:
    push_tagged(image, client, "a/b", ["latest"])
    return image


def test_fetch_by_type(fake: FakeRegistry, client: RegistryClient, pushed: Image, settings: Settings) -> None:
    """Attached files are found by type, the newest last, also when the list has several pages."""
    subject = pushed.manifest_descriptor
    new = attach(
        client, "a/b", subject, REPORT, [file('{"new": 1}')], annotations={CREATED: "2026-11-01T00:00:00Z"}
    )
    old = attach(
        client, "a/b", subject, REPORT, [file('{"old": 1}')], annotations={CREATED: "2026-10-01T00:00:00Z"}
    )
    sbom = attach(client, "a/b", subject, OTHER, [file("{}", "sbom.json"), file("[]", "more.json")])
    assert {d.digest for d in referrers(client, "a/b", subject.digest)} == {new, old, sbom}, (
        "on several pages"
    )
    found = fetch_attached(f"{fake.host}/a/b:latest", REPORT, settings)
    assert [a.digest for a in found] == [old, new]
    assert found[1].files == (file('{"new": 1}'),) and found[1].created == "2026-11-01T00:00:00Z"
    (other,) = fetch_attached(f"{fake.host}/a/b@{subject.digest}", OTHER, settings)
    assert [f.name for f in other.files] == ["sbom.json", "more.json"]
    assert fetch_attached(f"{fake.host}/a/b:latest", "application/none", settings) == []
    assert client.head_manifest("a/b", "latest").digest == pushed.digest  # type: ignore[union-attr]


def test_attach_twice(fake: FakeRegistry, client: RegistryClient, pushed: Image) -> None:
    """The same files attached again are neither sent nor listed again."""
    first = attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    fake.requests.clear()
    assert attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")]) == first
    assert {r.method for r in fake.requests} <= {"GET", "HEAD"}
    assert [d.digest for d in referrers(client, "a/b", pushed.digest)] == [first]


def test_manifest(fake: FakeRegistry, client: RegistryClient, pushed: Image) -> None:
    """The manifest and the list are as the image-spec requires."""
    digest = attach(
        client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")], annotations={CREATED: "2026"}
    )
    data, media_type = fake.manifests["a/b"][digest]
    manifest = json.loads(data)
    assert media_type == manifest["mediaType"] == OCI_MANIFEST and manifest["artifactType"] == REPORT
    assert manifest["subject"] == {
        "mediaType": OCI_MANIFEST,
        "digest": pushed.digest,
        "size": len(pushed.manifest),
    }
    assert manifest["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "size": 2,
    }
    assert fake.blobs["a/b"][manifest["config"]["digest"]] == b"{}"
    (entry,) = referrers(client, "a/b", pushed.digest)
    assert entry.artifact_type == REPORT and entry.annotations == {CREATED: "2026"}, (
        "the list tells, so that nobody need fetch all"
    )
    tag = fake.manifests["a/b"].get(referrers_tag(pushed.digest))
    assert (tag is None) == fake.lists_referrers
    if tag is not None:
        assert tag[1] == OCI_INDEX and json.loads(tag[0])["manifests"] == [entry.to_json()]


@pytest.mark.parametrize("fake", [True], indirect=True, ids=["lists referrers"])
def test_lists_without_the_header(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """A registry that lists referrers and does not send OCI-Subject gets no list under a tag."""
    fake.sends_subject = False
    ours = attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    assert [d.digest for d in referrers(client, "a/b", pushed.digest)] == [ours]
    assert referrers_tag(pushed.digest) not in fake.manifests["a/b"]


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
    client.put_manifest("a/b", referrers_tag(pushed.digest), json.dumps(index).encode(), OCI_INDEX)
    ours = attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    assert [d.digest for d in referrers(client, "a/b", pushed.digest)] == [theirs["digest"], ours]


@by_tag
def test_overwritten_entry(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """An entry that another writer overwrote is added again."""
    tag = referrers_tag(pushed.digest)
    theirs = {
        "mediaType": OCI_MANIFEST,
        "digest": "sha256:" + "2" * 64,
        "size": 7,
        "artifactType": "application/vnd.theirs",
    }
    body = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [theirs]}).encode()
    lost = []

    def fault(request: object) -> None:
        """Somebody's list, made before ours came, goes in right after ours."""
        if fake.count("PUT", f"/manifests/{tag}$") == 1 and fake.requests[-1].method == "HEAD" and not lost:
            lost.append(1)
            put(fake, tag, body)

    fake.fault = fault
    ours = attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    assert lost and [d.digest for d in referrers(client, "a/b", pushed.digest)] == [theirs["digest"], ours]


def entry(digit: str) -> dict[str, object]:
    """An entry of somebody else."""
    digest = "sha256:" + digit * 64
    return {"mediaType": OCI_MANIFEST, "digest": digest, "size": 7, "artifactType": "application/vnd.theirs"}


@by_tag
def test_write_between(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """A registry that honours If-Match keeps an entry that came between the look and the write."""
    tag, index = referrers_tag(pushed.digest), {"schemaVersion": 2, "mediaType": OCI_INDEX}
    put(fake, tag, json.dumps({**index, "manifests": [entry("1")]}).encode())
    fake.honours_conditions = True
    done = []

    def race(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith(tag) and not done:
            done.append(1)
            put(fake, tag, json.dumps({**index, "manifests": [entry("1"), entry("2")]}).encode())

    fake.fault = race
    ours = attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    listed = [d.digest for d in referrers(client, "a/b", pushed.digest)]
    assert listed == [entry("1")["digest"], entry("2")["digest"], ours]


def test_restore(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """An artifact whose entry was overwritten after it was attached is listed again, as it was."""
    created = {CREATED: "2026-11-01T00:00:00Z"}
    ours = attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")], annotations=created)
    listed = referrers(client, "a/b", pushed.digest)
    fake.requests.clear()
    assert restore_attached(client, "a/b", pushed.digest, [ours]) == []
    assert not fake.count("PUT")
    if fake.lists_referrers:
        return
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry("1")]}
    put(fake, referrers_tag(pushed.digest), json.dumps(index).encode())
    assert restore_attached(client, "a/b", pushed.digest, [ours]) == [ours]
    assert referrers(client, "a/b", pushed.digest)[1:] == listed


@by_tag
@pytest.mark.parametrize("status", [400, 404, 405, 406])
def test_no_list(client: RegistryClient, fake: FakeRegistry, pushed: Image, status: int) -> None:
    """Every response without a list leads to the list under the tag."""
    fake.fault = lambda r: Reply(status, body=b"<html>what?</html>") if "/referrers/" in r.path else None
    ours = attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    assert [d.digest for d in referrers(client, "a/b", pushed.digest)] == [ours]


def test_refusal_to_list(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """A refusal to list is an error, not an empty list."""
    fake.fault = lambda r: (
        Reply(403, body=b'{"errors":[{"code":"DENIED","message":"no"}]}') if "/referrers/" in r.path else None
    )
    with pytest.raises(RegistryError, match=r"did not list what is attached to .*403 .*DENIED"):
        referrers(client, "a/b", pushed.digest)


def test_images_only(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """A registry that accepts images only is a special error."""
    fake.fault = lambda r: (
        Reply(400, body=b'{"errors":[{"code":"MANIFEST_INVALID","message":"config media type"}]}')
        if r.method == "PUT" and "/manifests/" in r.path
        else None
    )
    with pytest.raises(ArtifactRefused, match="MANIFEST_INVALID: config media type"):
        attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])


def test_lost_blob(client: RegistryClient, fake: FakeRegistry, pushed: Image) -> None:
    """A blob that the registry lost is not a refusal of artifacts."""
    fake.fault = lambda r: (
        Reply(400, body=b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"gone"}]}')
        if r.method == "PUT" and "/manifests/" in r.path
        else None
    )
    with pytest.raises(RegistryError, match="MANIFEST_BLOB_UNKNOWN") as caught:
        attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    assert not isinstance(caught.value, ArtifactRefused)


def test_broken_connection(
    client: RegistryClient, fake: FakeRegistry, pushed: Image, settings: Settings
) -> None:
    """A request whose connection breaks is repeated."""
    fake.fail_once("GET", "/referrers/", Cut(3))
    attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}")])
    assert len(fetch_attached(f"{fake.host}/a/b:latest", REPORT, settings)) == 1


@by_tag
def test_damaged_lists(client: RegistryClient, fake: FakeRegistry, pushed: Image, settings: Settings) -> None:
    """A missing image, a damaged list and another manifest under the tag are errors."""
    with pytest.raises(RegistryError, match=r"has no .*a/b:none"):
        fetch_attached(f"{fake.host}/a/b:none", REPORT, settings)
    for damaged in (b'{"manifests": 3}', b"[]", b"[" * 200_000, b'{"manifests": [{"digest": 1, "size": 2}]}'):
        put(fake, referrers_tag(pushed.digest), damaged)
        with pytest.raises((RegistryError, ImageError), match="the list of attached artifacts|JSON|nested"):
            fetch_attached(f"{fake.host}/a/b:latest", REPORT, settings)
    put(fake, referrers_tag(pushed.digest), b'{"manifests": null}')
    assert fetch_attached(f"{fake.host}/a/b:latest", REPORT, settings) == []
    put(fake, referrers_tag(pushed.digest), pushed.manifest, OCI_MANIFEST)
    with pytest.raises(RegistryError, match="is not a list of attached artifacts"):
        fetch_attached(f"{fake.host}/a/b:latest", REPORT, settings)


@by_tag
@pytest.mark.parametrize("bound", ["MAX_SMALL_BLOB", "MAX_ATTACHED"])
def test_large_attachments(
    client: RegistryClient,
    fake: FakeRegistry,
    pushed: Image,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
) -> None:
    """The files of one artifact, and those of all of them, are read up to a limit."""
    for text in ("1", "2"):
        attach(client, "a/b", pushed.manifest_descriptor, REPORT, [file("{}"), file(text * 60, "more")])
    name = f"{fake.host}/a/b:latest"
    assert len(fetch_attached(name, REPORT, settings)) == 2
    monkeypatch.setattr(referrers_module, bound, 61 if bound == "MAX_SMALL_BLOB" else 123)
    with pytest.raises(RegistryError, match=r"what is attached to .*a/b.* is too large"):
        fetch_attached(name, REPORT, settings)


# layouts ----------------------------------------------------------------------------------------------------


def test_layout(image: Image, tmp_path: Path, settings: Settings) -> None:
    """A layout lists artifacts beside its images, and pruning retains them."""
    folder, store = tmp_path / "layout", Store(tmp_path / "cache")
    place = LayoutPlace(folder, store)
    place.push(image)
    place.move_tag("latest", image)
    first = place.attach(image.manifest_descriptor, REPORT, [file('{"a": 1}')], {CREATED: "2026-10"})
    assert (
        attach_in_layout(
            folder,
            store,
            image.manifest_descriptor,
            REPORT,
            [file('{"a": 1}')],
            annotations={CREATED: "2026-10"},
        )
        == first
    )
    place.attach(image.manifest_descriptor, OTHER, [file("{}")], {})
    assert [d.digest for d in layout_referrers(folder, image.digest, REPORT)] == [first]
    assert (
        len(layout_referrers(folder, image.digest)) == 2
        and layout_referrers(folder, "sha256:" + "0" * 64) == []
    )
    for reference in (f"oci:{folder}:latest", f"oci:{folder}@{image.digest}"):
        (found,) = fetch_attached(reference, REPORT, settings)
        assert found.files == (file('{"a": 1}'),) and found.created == "2026-10"
    assert list_tags(folder) == {"latest": image.digest}
    assert read_layout(folder).digest == image.digest, "the only image is found without its tag still"
    assert prune_layout(folder) == 0
    assert len(fetch_attached(f"oci:{folder}:latest", REPORT, settings)) == 1, "they belong to what is in use"


def test_large_file_in_layout(image: Image, tmp_path: Path, settings: Settings) -> None:
    """A layout may hold attached files that are larger than documents of the OCI."""
    place = LayoutPlace(tmp_path / "layout", Store(tmp_path / "cache"))
    place.push(image)
    place.move_tag("latest", image)
    large = file('"' + "x" * MAX_DOCUMENT + '"')
    place.attach(image.manifest_descriptor, REPORT, [large], {})
    (found,) = fetch_attached(f"oci:{place.folder}:latest", REPORT, settings)
    assert found.files == (large,)


def test_damaged_layout(image: Image, tmp_path: Path, settings: Settings) -> None:
    """A missing tag and a corrupt blob of a layout are errors."""
    folder = tmp_path / "layout"
    place = LayoutPlace(folder, Store(tmp_path / "cache"))
    place.push(image)
    place.move_tag("latest", image)
    digest = place.attach(image.manifest_descriptor, REPORT, [file('{"a": 1}')], {})
    with pytest.raises(ImageError, match=r"holds no image 'old'"):
        fetch_attached(f"oci:{folder}:old", REPORT, settings)
    with pytest.raises(UsageError, match="names no image"):
        fetch_attached("oci:layout", REPORT, settings)
    manifest = json.loads((folder / "blobs" / digest.replace(":", "/")).read_bytes())
    blob = folder / "blobs" / manifest["layers"][0]["digest"].replace(":", "/")
    blob.unlink()
    blob.write_bytes(b"else")
    with pytest.raises(ImageError, match="is corrupt"):
        fetch_attached(f"oci:{folder}:latest", REPORT, settings)
