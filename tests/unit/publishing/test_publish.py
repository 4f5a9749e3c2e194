"""What publishing attaches, and when; which report belongs to an image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.config.recipe import Recipe, Registry
from builder.engines.base import BuildResult
from builder.errors import LockError, TagExistsError, UsageError
from builder.model import Lock, LockedBase, LockedPackage
from builder.progress import NullReporter
from builder.project import Project
from builder.publishing.attest import PROVENANCE, SBOM, SMOKE_REPORT
from builder.publishing.publish import (
    Published,
    PublishOptions,
    SmokeRecord,
    destination_text,
    last_report,
    publish,
)
from builder.settings import Settings
from builder.smoke.run import SmokeReport
from builder.store.blobs import Store
from builder.store.records import write_record
from tests.support.fakeregistry import FakeRegistry, Reply, Request
from tests.support.images import make_layer, make_test_image

PYTHON = LockedPackage(
    "python", "3.11.9", "conda", "linux-64", "https://c.example/f/linux-64/python-3.11.9-0.conda", "a" * 64
)
LOCK = Lock((PYTHON,), ("linux-64",), digest="sha256:" + "d" * 64)
TAGS = ("26.11", "latest")


class Listening(NullReporter):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    for name in ("REGISTRY_USER", "REGISTRY_PASSWORD", "REGISTRY_AUTH_FILE", "BUILDER_REGISTRY_PROFILE"):
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


def test_last_report(project: Project, result: BuildResult) -> None:
    """The last passed report of the very image counts; the recorded one counts first."""
    record, digest = SmokeRecord(project.settings.cache), result.digest
    folder, short = project.root / "reports/t", digest[7:19]
    assert last_report(project, result.recipe, digest) is None
    record.store(digest, "pass", "userns", folder / "gone.json")
    assert last_report(project, result.recipe, digest) is None and record.passed(digest) == "pass"
    write(folder / f"{short}-20261101T000000Z.json", report(digest, started="old"))
    write(folder / f"{short}-20261102T000000Z.json", report(digest, started="new"))
    write(folder / f"{short}-20261103T000000Z.json", report(digest, "fail"))
    write(folder / f"{short}-20261104T000000Z.json", report("sha256:" + "0" * 64))
    write(folder / f"{short}-20261105T000000Z.json", "{")
    write(folder / f"{short}-20261106T000000Z.json", "[]")
    found = last_report(project, result.recipe, digest)
    assert found is not None and found["started"] == "new", "the last that passed, of this very image"
    record.store(digest, "pass", "userns", write(folder / "named.json", report(digest, started="named")))
    found = last_report(project, result.recipe, digest)
    assert found is not None and found["started"] == "named"


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


def test_damaged_record(tmp_path: Path) -> None:
    """Only an undamaged record of this image's pass counts."""
    record = SmokeRecord(tmp_path)
    digest = "sha256:" + "a" * 64
    assert record.passed(digest) is None
    record.store(digest, "pass", "userns")
    assert record.passed(digest) == "pass"
    path = next((tmp_path / "smoke").iterdir())
    path.write_text(path.read_text()[:-3])
    assert record.passed(digest) is None, "a damaged record is no pass"
    write_record(path, {"digest": "sha256:other", "verdict": "pass"})
    assert record.passed(digest) is None, "another image's pass is no pass"
