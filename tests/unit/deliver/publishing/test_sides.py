"""The images that ``builder smoke --ab`` names, for this host and for jobs of each runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildResult
from builder.core.errors import RegistryError, UsageError
from builder.core.model import Image
from builder.deliver.project import Project
from builder.deliver.publishing import sides as module
from builder.deliver.publishing.destination import open_destination
from builder.deliver.publishing.sides import built_side, named_side
from builder.deliver.smoke.abrun import AbTest, Side
from builder.deliver.smoke.options import SlurmOptions, SmokeOptions
from builder.formats.oci.layout import list_tags, read_layout, write_layout
from tests.support.fakeregistry import FakeRegistry
from tests.support.images import make_layer, make_test_image
from tests.support.sif import make_sif
from tests.unit.deliver.publishing.conftest import SITE, built

JOB = SlurmOptions()
APPTAINER = {**SITE, "runtime": {"kind": "apptainer"}}
OWN = {**SITE, "runtime": {"kind": "userns"}}


def old_image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", "old")], "old")


@pytest.fixture
def named(project: Project, tmp_path: Path) -> Any:
    """``named(text, slurm, site=..., format=...)`` returns the image; by default there is no repository."""

    def find(text: str, slurm: SlurmOptions | None = None, **recipe: Any) -> Side:
        return named_side(text, built(tmp_path, **recipe).recipe, project, slurm)

    return find


def test_files_here(named: Any, project: Project, tmp_path: Path) -> None:
    """A layout and a SIF; a text that is neither lists the forms."""
    image = old_image(tmp_path)
    write_layout(image, tmp_path / "old", "t", project.work.store)
    assert named(f"oci:{tmp_path / 'old'}:t").digest == image.digest
    sif = make_sif(tmp_path / "x.sif")
    found = named(str(tmp_path / "x.sif"))
    assert (found.digest, found.name) == (sif.digest, str(tmp_path / "x.sif"))
    with pytest.raises(UsageError, match="--ab: 'a/b c' does not name an image") as e:
        named("a/b c")
    assert "write build, a tag or digest" in e.value.hint


def test_registry(named: Any, project: Project, tmp_path: Path) -> None:
    """A tag, a digest and a whole name; for a job a reference with the digest, and nothing is downloaded."""
    image = old_image(tmp_path)
    with FakeRegistry() as fake:
        name, registry = f"{fake.host}/a/b", {"host": fake.host, "repository": "a/b"}
        place = open_destination(name, project.work.quiet())
        place.push(image)
        place.move_tag("26.10", image)
        place.close()
        for text in ("26.10", image.digest, f"{name}:26.10", f"docker://{name}:26.10"):
            assert named(text, registry=registry).digest == image.digest, text
            side = named(text, JOB, registry=registry, site=SITE)
            assert (side.reference, side.artifact, side.name) == (f"{name}@{image.digest}", None, text)
        side = named("26.10", JOB, registry=registry, site=APPTAINER)
        assert (side.reference, side.digest) == (f"docker://{name}@{image.digest}", image.digest)
        with pytest.raises(RegistryError, match=r"there is no .*:26\.09"):
            named("26.09", JOB, registry=registry, site=SITE)


def test_tag_without_a_repository(named: Any) -> None:
    with pytest.raises(UsageError, match="registry.host is not set"):
        named("26.10")


def test_files_of_jobs(
    named: Any,
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What jobs of a runtime cannot run is refused with the command that helps."""
    image = old_image(tmp_path)
    write_layout(image, tmp_path / "old", "t", project.work.store)
    old = f"oci:{tmp_path / 'old'}:t"
    sif = make_sif(tmp_path / "x.sif")
    assert named(str(sif.path), JOB, site=APPTAINER, format="sif").reference == str(sif.path)
    with pytest.raises(UsageError, match="run SIFs") as e:
        named(old, JOB, site=APPTAINER)
    assert f"builder convert {old}" in e.value.hint
    with pytest.raises(UsageError, match="is on this machine only"):
        named(old, JOB, site=SITE)
    with pytest.raises(UsageError, match="which finds no SIF"):
        named(str(sif.path), JOB, site=OWN)
    side = named(old, JOB, site=OWN)
    assert side.reference == f"oci:{project.layout}@{image.digest}"
    monkeypatch.setattr(module, "ab_on_slurm", lambda *a, **k: None)
    recipe = built(tmp_path, site=OWN).recipe
    module.run_sides(project, AbTest({"old": side}, recipe, SmokeOptions(), rounds=2), JOB)
    assert read_layout(project.layout, image.digest).digest == image.digest
    assert not list_tags(project.layout), "no target gets another image"


def test_build(project: Project, tmp_path: Path) -> None:
    result: BuildResult = built(tmp_path)
    side = built_side(project, result, None)
    assert (side.name, side.artifact, side.lock) == ("build", result.image, result.lock)
    at = f"reg.example/a@{result.digest}"
    result = built(tmp_path, site=SITE, registry={"host": "r.example", "repository": "a/t"})
    assert built_side(project, result, JOB).reference == f"r.example/a/t@{result.digest}"
    assert built_side(project, result, JOB, reference=at).reference == at
    own = built_side(project, built(tmp_path, site=OWN), JOB)
    assert own.reference == f"oci:{project.layout}@{result.digest}"


def test_all_gpus_of_a_job(
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job gets the node's GPUs with --all-gpus only."""
    asked: list[SlurmOptions] = []
    monkeypatch.setattr(module, "ab_on_slurm", lambda test, slurm, *a: asked.append(slurm))
    recipe = built(tmp_path, site={**SITE, "node": {"gpus": 4, "cores": 32}}).recipe
    for all_gpus in (False, True):
        test = AbTest({}, recipe, SmokeOptions(all_gpus=all_gpus), rounds=2)
        module.run_sides(project, test, JOB)
    assert [slurm.gpus for slurm in asked] == [None, 4]
