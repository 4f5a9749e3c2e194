"""What publishing does, in which order, and what stops it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildResult
from builder.core.errors import LockError, RegistryError, SmokeError, TagExistsError
from builder.core.model import Image
from builder.deliver.project import Project
from builder.deliver.publishing.publish import (
    Published,
    PublishOptions,
    publish,
)
from builder.deliver.publishing.release import PROVENANCE, RELEASE, SBOM, SMOKE_REPORT
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from builder.formats.oci.digest import sha256
from tests.support.fakeregistry import FakeRegistry, Reply, Request
from tests.support.images import make_test_image
from tests.support.releases import forget_settings
from tests.support.reporters import Warnings
from tests.unit.deliver.publishing.conftest import LOCK, PYTHON, built

TAGS = ("26.11", "latest")


@pytest.fixture
def fake(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRegistry:
    """A registry that lists attachments, and no credentials of whoever runs the tests."""
    forget_settings(monkeypatch, tmp_path)
    fake.lists_referrers = True
    return fake


@pytest.fixture
def project(project: Project) -> Project:
    return replace(project, work=replace(project.work, reporter=Warnings()))


@pytest.fixture
def result(tmp_path: Path) -> BuildResult:
    return built(tmp_path, smoke="torch")


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
    SmokeRecord(project.work.settings.cache).update(
        SmokeReport("pass", {}, "userns", result.digest, 0.0, path)
    )
    done = send(project, result, fake)
    assert list(done.attached) == [SBOM, PROVENANCE, SMOKE_REPORT]
    assert (done.smoke, done.tags) == ("pass", TAGS)
    puts = [r.path.rpartition("/")[2] for r in fake.requests if r.method == "PUT" and "/manifests/" in r.path]
    record = next(digest for digest in fake.manifests["a/b"] if digest == puts[-3])
    assert puts == [result.digest, *done.attached.values(), record, "26.11", "latest"]
    assert json.loads(fake.manifests["a/b"][record][0])["artifactType"] == RELEASE
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


def other_image(result: BuildResult) -> Image:
    assert result.image is not None
    return make_test_image(list(result.image.layers), "other")


def name(fake: FakeRegistry, tag: str, image: Image) -> None:
    """What another publisher does: the tag names its image."""
    entry = (image.manifest, image.manifest_descriptor.media_type)
    fake.manifests.setdefault("a/b", {})[tag] = entry
    fake.manifests["a/b"][image.digest] = entry


@pytest.mark.parametrize(
    ("method", "nth"), [("PUT", 1), ("HEAD", 1), ("HEAD", 2), ("HEAD", 3), ("HEAD", 4), ("HEAD", 5)]
)
def test_race(project: Project, result: BuildResult, fake: FakeRegistry, method: str, nth: int) -> None:
    """Another publish sets the month's tag at any moment: one of the two wins, and ours does not say it won
    unless the tag names our image.
    """
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", result.digest, 0.0))
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
        assert method == "PUT" or seen[0] < nth


def test_tag_of_another_image(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """A dated tag stays, and nothing is sent; with ``force`` it moves, and what it named is reported."""
    other = other_image(result)
    name(fake, "26.11", other)
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", result.digest, 0.0))
    with pytest.raises(TagExistsError, match=r"26\.11 exists"):
        send(project, result, fake)
    assert fake.count("PUT") == fake.count("POST") == 0
    done = send(project, result, fake, force=True)
    assert done.before == {"26.11": other.digest, "latest": None}


def test_read_back_before_tags(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """No tag moves to an image that the registry does not return as it was sent."""
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", result.digest, 0.0))
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
    assert done.verified is not None and done.verified.blobs == 2
    assert send(project, result, fake).verified.blobs == 0  # type: ignore[union-attr]


def test_unchanged(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """Publishing an unchanged image again asks once for each tag and reads nothing."""
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", result.digest, 0.0))
    send(project, result, fake)
    before = len(fake.requests)
    send(project, result, fake)
    again = fake.requests[before:]
    assert {r.method for r in again} == {"HEAD", "GET"}
    assert not any("/blobs/" in r.path for r in again if r.method == "GET")
    assert sum(r.path.endswith(TAGS) for r in again) == 2


def test_images_only(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    """A registry that accepts images only gets the image; there is a warning."""

    def fault(request: Request) -> Reply | None:
        ours = request.path.endswith(("latest", "26.11", result.digest))
        if request.method == "PUT" and "/manifests/" in request.path and not ours:
            return Reply(415, body=b'{"errors":[{"code":"MANIFEST_INVALID","message":"unknown artifact"}]}')
        return None

    fake.fault = fault
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", result.digest, 0.0))
    done = send(project, result, fake)
    assert done.attached == {} and done.tags == TAGS and "latest" in fake.manifests["a/b"]
    (warning,) = project.work.reporter.messages  # type: ignore[attr-defined]
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
    assert SmokeRecord(project.work.settings.cache).report(result.digest) == report(result.digest)


def test_fail_after_a_pass(
    project: Project, result: BuildResult, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image whose last test failed is not published by the record of an earlier one."""
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", result.digest, 0.0))
    answer = SmokeReport("fail", report(result.digest, "fail"), "userns", result.digest, 1.0, None)
    monkeypatch.setattr(Project, "smoke", lambda self, *a, **k: answer)
    for policy in ("always", "auto"):
        with pytest.raises(SmokeError, match="no tag was moved"):
            send(project, result, fake, policy=policy)
    assert not fake.manifests.get("a/b")


def test_log(
    project: Project, result: BuildResult, fake: FakeRegistry, told: Callable[[], list[str]]
) -> None:
    """``builder -v`` tells each step: tags, test, push, read-back, and each tag before and after."""
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", result.digest, 0.0))
    done = send(project, result, fake)
    to, digest, verified = done.reference, done.digest, done.verified
    assert verified is not None
    assert told() == [
        f"tags of {to} that may move to {digest}: 26.11 (new), latest (new)",
        f"smoke test of {digest}: pass, known without a run",
        f"pushed to {to}: 2 blobs sent, 0 mounted",
        f"read back 2 blobs, {verified.bytes} bytes, from {to}",
        f"tags of {to} that may move to {digest}: 26.11 (new), latest (new)",
        *[f"{to}:{tag} named no image, now {digest}" for tag in TAGS],
    ]
