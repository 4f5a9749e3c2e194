"""What publishing attaches, and when; which report belongs to an image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.config.recipe import Recipe
from builder.engines.base import BuildResult
from builder.errors import TagExistsError
from builder.model import Lock, LockedBase, LockedPackage
from builder.progress import NullReporter
from builder.project import Project
from builder.publishing.attest import PROVENANCE, SBOM, SMOKE_REPORT
from builder.publishing.publish import Published, SmokeRecord, TagPlan, kept_report, publish
from builder.settings import Settings
from builder.smoke.run import SmokeReport
from builder.store.blobs import Store
from tests.support.fakeregistry import FakeRegistry, Reply, Request
from tests.support.images import make_layer, make_test_image, push_tagged

PYTHON = LockedPackage(
    "python", "3.11.9", "conda", "linux-64", "https://c.example/f/linux-64/python-3.11.9-0.conda", "a" * 64
)
LOCK = Lock((PYTHON,), ("linux-64",), digest="sha256:" + "d" * 64)
PLAN = TagPlan(("26.11", "latest"), frozenset({"26.11"}))


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
    return publish(project, result, to=f"{fake.host}/a/b", tags=PLAN, **more)


def test_everything_is_attached_before_a_tag_names_the_image(
    project: Project, result: BuildResult, fake: FakeRegistry
) -> None:
    path = write(project.root / "reports/t/x.json", report(result.digest))
    SmokeRecord(project.settings.cache).keep(result.digest, "pass", "userns", path)
    done = send(project, result, fake)
    assert (
        list(done.attached) == [SBOM, PROVENANCE, SMOKE_REPORT]
        and done.smoke == "pass"
        and done.tags == PLAN.tags
    )
    puts = [r.path.rpartition("/")[2] for r in fake.requests if r.method == "PUT" and "/manifests/" in r.path]
    assert puts == [result.digest, *done.attached.values(), "26.11", "latest"]
    manifest = json.loads(fake.manifests["a/b"][done.attached[SMOKE_REPORT]][0])
    sent = json.loads(fake.blobs["a/b"][manifest["layers"][0]["digest"]])
    assert sent == report(result.digest)
    assert manifest["annotations"] == {"org.opencontainers.image.created": "2026-11-21T08:00:00Z"}


def test_nothing_is_sent_when_a_tag_may_not_move(
    project: Project, result: BuildResult, fake: FakeRegistry
) -> None:
    other = make_test_image(list(result.image.layers), "other")  # type: ignore[union-attr]
    fake.manifests["a/b"] = {"26.11": (other.manifest, other.manifest_descriptor.media_type)}
    with pytest.raises(TagExistsError):
        send(project, result, fake)
    assert fake.count("PUT") == fake.count("POST") == 0


def test_without_tags_there_is_no_report_but_the_rest(
    project: Project, result: BuildResult, fake: FakeRegistry
) -> None:
    done = send(project, result, fake, move_tags=False)
    assert list(done.attached) == [SBOM, PROVENANCE] and done.tags == () and done.smoke == "not run"


def test_a_dry_run_sends_nothing(project: Project, result: BuildResult, fake: FakeRegistry) -> None:
    assert send(project, result, fake, dry_run=True).attached == {}
    assert fake.count("PUT") == fake.count("POST") == 0


def test_a_registry_that_takes_images_only_gets_the_image(
    project: Project, result: BuildResult, fake: FakeRegistry
) -> None:
    def fault(request: Request) -> Reply | None:
        ours = request.path.endswith(("latest", "26.11", result.digest))
        if request.method == "PUT" and "/manifests/" in request.path and not ours:
            return Reply(415, body=b'{"errors":[{"code":"MANIFEST_INVALID","message":"unknown artifact"}]}')
        return None

    fake.fault = fault
    SmokeRecord(project.settings.cache).keep(result.digest, "pass", "userns")
    done = send(project, result, fake)
    assert done.attached == {} and done.tags == PLAN.tags and "latest" in fake.manifests["a/b"]
    (warning,) = project.reporter.warnings  # type: ignore[attr-defined]
    assert "unknown artifact" in warning and "takes images only" in warning


def test_a_test_that_runs_now_leaves_its_report(
    project: Project, result: BuildResult, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(project.root / "reports/t/now.json", report(result.digest))
    answer = SmokeReport("pass", report(result.digest), "userns", result.digest, 1.0, path)
    monkeypatch.setattr(Project, "smoke", lambda self, *a, **k: answer)
    done = send(project, result, fake)
    again = send(project, result, fake)  # on record now
    assert SMOKE_REPORT in done.attached and again.attached == done.attached
    assert SmokeRecord(project.settings.cache).report(result.digest) == report(result.digest)


def test_which_report_belongs_to_an_image(project: Project, result: BuildResult) -> None:
    record, digest = SmokeRecord(project.settings.cache), result.digest
    folder, short = project.root / "reports/t", digest[7:19]
    assert kept_report(project, result.recipe, digest) is None
    record.keep(digest, "pass", "userns", folder / "gone.json")
    assert kept_report(project, result.recipe, digest) is None and record.passed(digest) == "pass"
    write(folder / f"{short}-20261101T000000Z.json", report(digest, started="old"))
    write(folder / f"{short}-20261102T000000Z.json", report(digest, started="new"))
    write(folder / f"{short}-20261103T000000Z.json", report(digest, "fail"))
    write(folder / f"{short}-20261104T000000Z.json", report("sha256:" + "0" * 64))
    write(folder / f"{short}-20261105T000000Z.json", "{")
    write(folder / f"{short}-20261106T000000Z.json", "[]")
    found = kept_report(project, result.recipe, digest)
    assert found is not None and found["started"] == "new", "the last that passed, of this very image"
    record.keep(digest, "pass", "userns", write(folder / "named.json", report(digest, started="named")))
    found = kept_report(project, result.recipe, digest)
    assert found is not None and found["started"] == "named"
