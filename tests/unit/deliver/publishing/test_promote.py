"""Which candidates are promoted: what their smoke report must say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import SmokeError
from builder.core.model import Image
from builder.core.progress import QUIET
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import RegistryDestination
from builder.deliver.publishing.promote import ReleaseOptions, TagMoves, _passed, plan_promotion
from builder.deliver.publishing.release import SMOKE_REPORT
from builder.formats.registry import referrers
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.referrers import Artifact, AttachedFile
from builder.lock.config.recipe import Recipe
from tests.support.fakeregistry import FakeRegistry
from tests.support.images import make_layer, make_test_image, push_tagged

MONTH = ReleaseOptions(month="26.11")


@pytest.fixture
def place(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> RegistryDestination:
    fake.lists_referrers = True
    return RegistryDestination(client, "a/b", Store(tmp_path / "cache"))


@pytest.fixture
def image(place: RegistryDestination, tmp_path: Path) -> Image:
    """The candidate."""
    made = make_test_image([make_layer(tmp_path / "layers", "one")])
    push_tagged(made, place.client, place.repository, ["candidate"])
    return made


def recipe(tmp_path: Path, **more: Any) -> Recipe:
    values = {"name": "t", "base": "oci:b", "environment": "e.yml", "source": tmp_path / "recipes/t.yaml"}
    return Recipe.model_validate({**values, "root": tmp_path, "smoke": "torch", **more})


def attach_report(
    place: RegistryDestination, candidate: Image, /, started: str = "2026-11-28", **more: Any
) -> None:
    """Attach a smoke report, which passed unless ``more`` says something else."""
    expect, image = {"gpu": "none"}, {"digest": candidate.digest}
    report = {"verdict": "pass", "started": started, "expect": expect, "image": image, **more}
    file = AttachedFile("smoke.json", SMOKE_REPORT, json.dumps(report).encode())
    created = {"org.opencontainers.image.created": started}
    place.attach(candidate.manifest_descriptor, Artifact(SMOKE_REPORT, [file], created))


def plan(place: RegistryDestination, tmp_path: Path, **more: Any) -> TagMoves:
    return plan_promotion(recipe(tmp_path, **more), place, MONTH, QUIET)


@pytest.mark.parametrize("verdict", ["pass", "warn"])
def test_passed(place: RegistryDestination, image: Image, tmp_path: Path, verdict: str) -> None:
    attach_report(place, image, verdict=verdict)
    moves = plan(place, tmp_path)
    assert moves.smoke == f"{verdict}, GPUs: none, 2026-11-28"
    assert moves.moving == {"26.11": None, "latest": None}


OTHER = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"verdict": "fail"}, "the verdict is fail, not pass"),
        ({"verdict": "none"}, "the verdict is none, not pass"),
        ({"verdict": None}, "the verdict is None, not pass"),
        ({"image": {"digest": OTHER}}, f"is about another image, {OTHER}"),
        ({"image": None}, "is about another image, None"),
        ({"expect": {"gpu": "nvidia"}}, "tested GPUs of nvidia, and the recipe is for none"),
        ({"expect": None}, "tested GPUs of None, and the recipe is for none"),
    ],
)
def test_refused(
    place: RegistryDestination, image: Image, tmp_path: Path, report: dict[str, Any], message: str
) -> None:
    attach_report(place, image, **report)
    with pytest.raises(SmokeError) as caught:
        plan(place, tmp_path)
    assert (
        caught.value.message == f"{place.name}@{image.digest}: its smoke report: {message}; no tag was moved"
    )
    assert caught.value.hint == "test it: builder publish t --only candidate --smoke always"


def test_no_report(place: RegistryDestination, image: Image, tmp_path: Path) -> None:
    with pytest.raises(SmokeError, match="its smoke report: not attached; no tag was moved"):
        plan(place, tmp_path)
    moves = plan(place, tmp_path, smoke={"none": "a toy"})
    assert moves.smoke == "not tested: a toy"


def test_other_gpu(place: RegistryDestination, image: Image, tmp_path: Path) -> None:
    """A pass on a machine without GPUs is no pass for a GPU target."""
    attach_report(place, image)
    gpu = {"vendor": "nvidia", "architectures": ["sm_80"]}
    with pytest.raises(SmokeError, match="tested GPUs of none, and the recipe is for nvidia"):
        plan(place, tmp_path, gpu=gpu)
    attach_report(place, image, "2026-11-29", expect={"gpu": "nvidia"})
    assert plan(place, tmp_path, gpu=gpu).smoke == "pass, GPUs: nvidia, 2026-11-29"


@pytest.mark.parametrize(("first", "second"), [("fail", "pass"), ("pass", "fail")])
def test_newest_report_counts(
    place: RegistryDestination, image: Image, tmp_path: Path, first: str, second: str
) -> None:
    """A test that failed after one that passed stops the promotion."""
    attach_report(place, image, "2026-11-28", verdict=first)
    attach_report(place, image, "2026-11-29", verdict=second)
    if second == "pass":
        assert plan(place, tmp_path).smoke == "pass, GPUs: none, 2026-11-29"
        return
    with pytest.raises(SmokeError, match="the verdict is fail, not pass"):
        plan(place, tmp_path)


def test_attached_by_others(
    fake: FakeRegistry,
    place: RegistryDestination,
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report of a signed record counts however many newer ones others attach; only it is read."""
    monkeypatch.setattr(referrers, "MAX_READ", 2)
    attach_report(place, image)
    [report] = place.listed(image.digest, SMOKE_REPORT)
    seal = replace(plan(place, tmp_path).seal, attached={SMOKE_REPORT: report.digest})
    for day in range(1, 5):
        attach_report(place, image, f"2027-01-0{day}", verdict="fail")
    fake.requests.clear()
    assert _passed(recipe(tmp_path), seal) == "pass, GPUs: none, 2026-11-28"
    assert {r.path.rpartition("/")[2] for r in fake.requests if "/manifests/" in r.path} == {report.digest}
