"""What publishing does, in which order, and what stops it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.config.recipe import Recipe, Registry
from builder.engines.base import BuildResult
from builder.errors import LockError, RegistryError, SmokeError, TagExistsError, UsageError
from builder.model import OCI_INDEX, Image, Lock, LockedBase, LockedPackage, canonical_json
from builder.oci.digest import sha256
from builder.oci.layout import list_tags, write_layout
from builder.progress import NullReporter
from builder.project import Project
from builder.publishing.attest import PROVENANCE, SBOM, SMOKE_REPORT
from builder.publishing.places import LayoutPlace
from builder.publishing.publish import (
    Published,
    PublishOptions,
    destination_text,
    publish,
)
from builder.publishing.smoke_record import SmokeRecord
from builder.registry.push import PushReport
from builder.settings import Settings
from builder.smoke.run import SmokeReport
from builder.store.blobs import Store
from tests.support.fakeregistry import FakeRegistry, Reply, Request
from tests.support.images import make_layer, make_test_image

PYTHON = LockedPackage(
    "python", "3.11.9", "conda", "linux-64", "https://c.example/f/linux-64/python-3.11.9-0.conda", "a" * 64
)
LOCK = Lock((PYTHON,), ("linux-64",), digest="sha256:" + "d" * 64)
TAGS = ("26.11", "latest")
REGISTRY_VARIABLES = ("REGISTRY_USER", "REGISTRY_PASSWORD", "REGISTRY_HOST")


class Listening(NullReporter):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    for name in (*REGISTRY_VARIABLES, "REGISTRY_AUTH_FILE", "BUILDER_REGISTRY_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with FakeRegistry() as fake:
        fake.lists_referrers = True
        yield fake


@pytest.fixture
def project(tmp_path: Path) -> Project:
    settings = Settings.from_environment({"HOME": str(tmp_path)}, cache=tmp_path / "cache")
    (tmp_path / "recipes").mkdir()
    return Project(tmp_path, settings, Store(settings.cache), Listening())


@pytest.fixture
def result(tmp_path: Path) -> BuildResult:
    values = {
        "name": "t",
        "base": "oci:b",
        "environment": "e.yml",
        "smoke": "torch",
        "source": tmp_path / "recipes/t.yaml",
        "root": tmp_path,
    }
    image = make_test_image([make_layer(tmp_path / "layers", "one")])
    return BuildResult(Recipe.model_validate(values), LOCK, LockedBase("oci:b", "sha256:" + "e" * 64), image)


def report(digest: str, verdict: str = "pass", started: str = "2026-11-21T08:00:00Z") -> dict[str, Any]:
    return {"verdict": verdict, "started": started, "image": {"digest": digest, "target": "t"}}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def send(project: Project, result: BuildResult, fake: FakeRegistry, **more: Any) -> Published:
    return publish(project, result, PublishOptions(to=f"{fake.host}/a/b", month="26.11", **more))


def test_attached_before_tags(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """Everything is attached before a tag names the image."""
    path = write(project.root / "reports/t/x.json", report(result.digest))
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns", path)
    done = send(project, result, fake)
    assert (
        list(done.attached) == [SBOM, PROVENANCE, SMOKE_REPORT] and done.smoke == "pass" and done.tags == TAGS
    )
    puts = [r.path.rpartition("/")[2] for r in fake.requests if r.method == "PUT" and "/manifests/" in r.path]
    assert puts == [result.digest, *done.attached.values(), "26.11", "latest"]
    manifest = json.loads(fake.manifests["a/b"][done.attached[SMOKE_REPORT]][0])
    sent = json.loads(fake.blobs["a/b"][manifest["layers"][0]["digest"]])
    assert sent == report(result.digest)
    assert manifest["annotations"] == {"org.opencontainers.image.created": "2026-11-21T08:00:00Z"}


def test_md5(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """Nothing is published from a lock whose packages have an MD5 alone."""
    weak = replace(PYTHON, sha256=None, md5="b" * 32)
    with pytest.raises(LockError, match="1 packages of the lock have an MD5 and no SHA-256: python"):
        send(project, replace(result, lock=replace(LOCK, packages=(weak,))), fake)
    assert not fake.requests


def test_fixed_tag(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """Nothing is sent when a tag may not move."""
    other = make_test_image(list(result.image.layers), "other")  # type: ignore[union-attr]
    fake.manifests["a/b"] = {"26.11": (other.manifest, other.manifest_descriptor.media_type)}
    with pytest.raises(TagExistsError):
        send(project, result, fake)
    assert fake.count("PUT") == fake.count("POST") == 0


def other_image(result: BuildResult) -> Image:
    assert result.image is not None
    return make_test_image(list(result.image.layers), "other")


def name(fake: FakeRegistry, tag: str, image: Image) -> None:
    """What another publisher does: the tag names its image."""
    entry = (image.manifest, image.manifest_descriptor.media_type)
    fake.manifests.setdefault("a/b", {})[tag] = entry
    fake.manifests["a/b"][image.digest] = entry


@pytest.mark.parametrize("conditions", [True, False], ids=["If-None-Match", "no conditions"])
@pytest.mark.parametrize(
    ("method", "nth"), [("PUT", 1), ("HEAD", 1), ("HEAD", 2), ("HEAD", 3), ("HEAD", 4), ("HEAD", 5)]
)
def test_race(
    project: Project, result: BuildResult, fake: FakeRegistry, conditions: bool, method: str, nth: int
) -> None:
    """Another publish sets the month's tag at any moment: one of the two wins, and ours does not say it won
    unless the tag names our image.
    """
    fake.honours_conditions = conditions
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    other, seen = other_image(result), [0]

    def fault(request: Request) -> None:
        if request.method == method and request.path.endswith("/manifests/26.11"):
            seen[0] += 1
            if seen[0] == nth:
                name(fake, "26.11", other)

    fake.fault = fault
    try:
        done = send(project, result, fake)
    except TagExistsError as e:
        assert e.exit_code == 12 and "26.11" in e.message and other.digest[:19] in e.message
        assert sha256(fake.manifests["a/b"]["26.11"][0]) == other.digest
        lost_at_the_end = method == "HEAD" and nth == 5
        assert ("latest" in fake.manifests["a/b"]) is lost_at_the_end
    else:
        assert done.tags == TAGS and sha256(fake.manifests["a/b"]["26.11"][0]) == result.digest
        assert (method, conditions) == ("PUT", False) or seen[0] < nth


def test_winner_moves_latest_again(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """The publish whose month's tag stays moves ``latest`` too, although the loser was there in between."""
    fake.honours_conditions = True
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    other, seen = other_image(result), []

    def fault(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith("/latest") and not seen:
            seen.append(request)
            name(fake, "latest", other)

    fake.fault = fault
    assert send(project, result, fake).before == {"26.11": None, "latest": other.digest}
    assert {sha256(fake.manifests["a/b"][tag][0]) for tag in TAGS} == {result.digest}


def test_back_in_time(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """``latest`` of a later month stays, and nothing is sent; with ``force`` it moves, and what it named is
    reported.
    """
    other = other_image(result)
    name(fake, "26.12", other)
    name(fake, "latest", other)
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    with pytest.raises(
        TagExistsError, match=r"latest would go back to an older image: .* the image of 26\.12"
    ):
        send(project, result, fake)
    assert fake.count("PUT") == fake.count("POST") == 0
    done = send(project, result, fake, force=True)
    assert done.before == {"26.11": None, "latest": other.digest}


def test_read_back_before_tags(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """No tag moves to an image that the registry does not return as it was sent."""
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    layer = result.image.layers[0].descriptor.digest  # type: ignore[union-attr]

    def fault(request: Request) -> Reply | None:
        damaged = request.method == "GET" and request.path.endswith(layer)
        return Reply(200, body=b"something else") if damaged else None

    fake.fault = fault
    with pytest.raises(RegistryError, match=f"returned 14 bytes with the digest .* for the blob {layer}"):
        send(project, result, fake)
    assert set(fake.manifests["a/b"]) == {result.digest}, "neither a tag nor an attachment"
    fake.fault = lambda request: None
    done = send(project, result, fake)
    assert done.verified is not None and (done.verified.mode, done.verified.blobs) == ("sent", 2)
    assert send(project, result, fake).verified.blobs == 0  # type: ignore[union-attr]
    assert send(project, result, fake, verify="all").verified.blobs == 2  # type: ignore[union-attr]


def test_unchanged(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """Publishing an unchanged image again asks once for each tag and reads nothing."""
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    send(project, result, fake)
    before = len(fake.requests)
    send(project, result, fake)
    again = fake.requests[before:]
    assert {r.method for r in again} == {"HEAD", "GET"}
    assert not any("/blobs/" in r.path for r in again if r.method == "GET")
    assert sum(r.path.endswith(TAGS) for r in again) == 2


def test_attachments_of_a_race(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """What another publish removed from the list of attached artifacts is listed again after the tags."""
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    fake.lists_referrers = False
    listing = result.digest.replace(":", "-")
    empty = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []})

    def fault(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith("/latest"):
            there = fake.manifests["a/b"]
            there[listing] = there[sha256(empty)] = (empty, OCI_INDEX)

    fake.fault = fault
    done = send(project, result, fake)
    listed = json.loads(fake.manifests["a/b"][listing][0])["manifests"]
    assert {entry["digest"] for entry in listed} == set(done.attached.values())


def test_race_in_layout(project: Project, result: BuildResult, tmp_path: Path) -> None:
    """A layout's tag that another publish sets between the check and the move stays."""
    folder = tmp_path / "there"
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    other = other_image(result)
    push = LayoutPlace.push

    def slow_push(place: LayoutPlace, image: Image) -> PushReport:
        report = push(place, image)
        write_layout(other, folder, "26.11", project.store)
        return report

    options = PublishOptions(to=f"oci:{folder}", month="26.11")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(LayoutPlace, "push", slow_push)
        with pytest.raises(TagExistsError, match=r"26\.11 exists and is"):
            publish(project, result, options)
    assert list_tags(folder) == {"26.11": other.digest}
    place = LayoutPlace(folder, project.store)
    assert result.image is not None
    assert place.move_tag("26.11", result.image, None).now == other.digest
    assert place.move_tag("26.11", result.image, other.digest).now == result.digest


def test_password_for_another_registry(
    project: Project, result: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With REGISTRY_HOST a registry that a recipe names instead does not get the password."""
    for name_, value in (("USER", "robot"), ("PASSWORD", "s3cret"), ("HOST", "registry.example")):
        monkeypatch.setenv(f"REGISTRY_{name_}", value)
    with FakeRegistry(token_user=("robot", "s3cret")) as closed:
        with pytest.raises(RegistryError) as e:
            send(project, result, closed, move_tags=False)
        assert e.value.status == 401
        sent = [r.headers.get("authorization", "") for r in (*closed.requests, *closed.tokens)]
        assert not any(header.startswith("Basic") for header in sent)
        monkeypatch.setenv("REGISTRY_HOST", closed.host)
        assert send(project, result, closed, move_tags=False).push is not None


def test_no_tags(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """Without tags SBOM and provenance are attached, but no report."""
    done = send(project, result, fake, move_tags=False)
    assert list(done.attached) == [SBOM, PROVENANCE] and done.tags == () and done.smoke == "not run"


def test_dry_run(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """A dry run sends nothing."""
    assert send(project, result, fake, dry_run=True).attached == {}
    assert fake.count("PUT") == fake.count("POST") == 0


def test_images_only(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """A registry that accepts images only gets the image; there is a warning."""

    def fault(request: Request) -> Reply | None:
        ours = request.path.endswith(("latest", "26.11", result.digest))
        if request.method == "PUT" and "/manifests/" in request.path and not ours:
            return Reply(415, body=b'{"errors":[{"code":"MANIFEST_INVALID","message":"unknown artifact"}]}')
        return None

    fake.fault = fault
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    done = send(project, result, fake)
    assert done.attached == {} and done.tags == TAGS and "latest" in fake.manifests["a/b"]
    (warning,) = project.reporter.warnings  # type: ignore[attr-defined]
    assert "unknown artifact" in warning and "accepts images only" in warning


def test_report_of_a_new_test(
    project: Project, result: BuildResult, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a test that runs now is attached and recorded."""
    path = write(project.root / "reports/t/now.json", report(result.digest))
    answer = SmokeReport("pass", report(result.digest), "userns", result.digest, 1.0, path)
    monkeypatch.setattr(Project, "smoke", lambda self, *a, **k: answer)
    done = send(project, result, fake)
    again = send(project, result, fake)  # on record now
    assert SMOKE_REPORT in done.attached and again.attached == done.attached
    assert SmokeRecord(project.settings.cache).report(result.digest) == report(result.digest)


def test_fail_after_a_pass(
    project: Project, result: BuildResult, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image whose last test failed is not published by the record of an earlier one."""
    SmokeRecord(project.settings.cache).store(result.digest, "pass", "userns")
    answer = SmokeReport("fail", report(result.digest, "fail"), "userns", result.digest, 1.0, None)
    monkeypatch.setattr(Project, "smoke", lambda self, *a, **k: answer)
    for policy in ("always", "auto"):
        with pytest.raises(SmokeError, match="no tag was moved"):
            send(project, result, fake, policy=policy)
    assert not fake.manifests.get("a/b")


def recipe(**registry: object) -> Recipe:
    return Recipe(
        name="t",
        base="oci:b",
        environment="e.yml",
        registry=Registry(**registry),
        source=Path("recipes/t.yaml"),
    )


def test_destination() -> None:
    """--to counts before --registry, and that before the recipe."""
    there = recipe(host="registry.example", repository="a/b")
    assert destination_text(there, None, None) == "registry.example/a/b"
    assert destination_text(there, None, "other:5000/p") == "other:5000/p/a/b"
    assert destination_text(there, "oci:dir", "other") == "oci:dir"
    with pytest.raises(UsageError, match=r"registry\.host is not set"):
        destination_text(recipe(), None, None)


def test_index_of_platforms(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """With ``registry: {index: true}`` the tags name an index; the image of another platform stays in it."""
    registry = Registry(index=True, tags=("latest",))
    recipes = [
        result.recipe.model_copy(update={"registry": registry, "name": name, "platform": platform})
        for name, platform in (("t", "linux-64"), ("t-arm", "linux-aarch64"))
    ]
    arm = make_test_image(list(result.image.layers), "arm")  # type: ignore[union-attr]
    builds = [
        replace(result, recipe=recipes[0]),
        replace(result, recipe=recipes[1], artifact=arm),
    ]
    to = f"{fake.host}/a/b"
    for build in builds:
        path = write(project.root / f"reports/{build.recipe.name}/x.json", report(build.digest))
        SmokeRecord(project.settings.cache).store(build.digest, "pass", "userns", path)
    first, second = (publish(project, build, PublishOptions(to=to)) for build in builds)
    assert first.before == {"latest": None}
    assert second.before == first.indexes and second.digest == arm.digest
    data, kind = fake.manifests["a/b"]["latest"]
    assert kind == OCI_INDEX and sha256(data) == second.indexes["latest"]
    members = {entry["platform"]["architecture"]: entry["digest"] for entry in json.loads(data)["manifests"]}
    assert members == {"amd64": result.digest, "arm64": arm.digest}
    again = publish(project, builds[0], PublishOptions(to=to))
    assert again.indexes == {}
    plain = replace(
        builds[0], recipe=result.recipe.model_copy(update={"registry": Registry(tags=("latest",))})
    )
    with pytest.raises(TagExistsError, match="is an index of images for amd64, arm64"):
        publish(project, plain, PublishOptions(to=to, policy="auto"))
