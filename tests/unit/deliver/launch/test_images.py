"""The image of a target, without the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import Project, Settings, target_images
from builder.core.errors import ImageError, RegistryError, RunnerError, UsageError
from builder.core.version import __version__
from builder.deliver.launch import images as launched
from builder.deliver.launch.here import run_target
from builder.deliver.launch.images import OwnImages
from builder.deliver.launch.jobs import interactive_job, job_script
from builder.deliver.site.containers import ContainerRequest
from builder.deliver.site.request import JobRequest
from builder.deliver.site.runtimes.table import runtime_of
from tests.support.project import edit, tiny_project

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def images(tmp_path: Path) -> OwnImages:
    """Those of a target that was never built, for builder's own runner."""
    tiny = tiny_project(tmp_path, "http://unused.example")
    project = Project.find(tiny.root, Settings(tiny.cache, tmp_path / "tmp", jobs=1))
    found = target_images(project, project.recipe("tiny"))
    assert isinstance(found, OwnImages)
    return found


def test_named(images: OwnImages) -> None:
    """The digest or the image that a user names; none is an empty text."""
    assert images.runtime.named_image("", DIGEST) == DIGEST
    assert images.runtime.named_image("x/y:1", "") == "x/y:1"
    assert images.runtime.named_image("", "") == ""


def test_digest_for_another_runtime(images: OwnImages) -> None:
    """Only builder's own runtime looks an image up by its digest."""
    edit(images.recipe.source, site={"runtime": {"kind": "docker"}, "launcher": "torchrun"})
    recipe = images.project.recipe("tiny")
    with pytest.raises(UsageError, match="tiny runs with docker"):
        runtime_of(recipe).named_image("", DIGEST)


def test_no_image(images: OwnImages) -> None:
    """A job builds nothing: the image must be there."""
    assert images.to_run()[0] == images.to_print() == ""
    with pytest.raises(ImageError, match="a job does not build one") as error:
        images.own(may_build=False)
    assert "builder build tiny, or builder pull tiny" in error.value.hint


def test_engine_that_is_not_here(images: OwnImages) -> None:
    """Without a repository, too, the error of a run names the program that is missing."""
    site = {"runtime": {"kind": "podman-hpc"}, "slurm": {"account": "none"}}
    edit(images.recipe.source, site=site, registry={})
    engine = target_images(images.project, images.project.recipe("tiny"))
    with pytest.raises(RunnerError, match="podman-hpc is not installed on this machine"):
        run_target(engine, ContainerRequest("", ("true",)))
    with pytest.raises(UsageError) as error:
        engine.to_print()
    assert error.value.hint.startswith("write registry: {host: ghcr.io, repository: ME/NAME}, or pass")


def test_digest_in_scripts(images: OwnImages, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is written names what the tag names now: two jobs of one study run one image."""
    asked: list[str] = []

    def pinned(*_: object, image: str) -> str:
        asked.append(image)
        if "silent" in image:
            raise RegistryError("cannot reach silent.example: unknown host name", "")
        return f"h.example/team/a@{DIGEST}"

    site = {"runtime": {"kind": "podman-hpc"}, "slurm": {"account": "none"}, "local": "/tmp/x"}
    edit(images.recipe.source, site=site, registry={"host": "h.example", "repository": "team/a"})
    monkeypatch.setattr(launched, "pinned_reference", pinned)
    engine = target_images(images.project, images.project.recipe("tiny"))
    script = job_script(engine, JobRequest(("python", "t.py")))
    assert f"# Image: h.example/team/a@{DIGEST}\n#SBATCH" in script
    assert f"export BUILDER_IMAGE=h.example/team/a@{DIGEST}\n" in script and asked == [""]
    silent = job_script(engine, JobRequest(("python", "t.py"), image="silent.example/team/a:1"))
    assert "# Image: silent.example/team/a:1, a tag, and no digest is known.\n" in silent
    assert "# builder job --image silent.example/team/a@sha256:...\n" in silent
    asked.clear()
    assert "localhost/a" in job_script(engine, JobRequest(("python", "t.py"), image="localhost/a"))
    assert "h.example/team/a:latest" in interactive_job(engine, JobRequest()) and asked == []


def test_head_of_a_script(images: OwnImages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version, day and image are comments, whatever the image's name has in it."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    script = job_script(images, JobRequest(("python", "t.py")))
    assert f"# Written by builder {__version__} on 1970-01-01; run it with: bash FILE\n" in script
    assert "# Image: that of target tiny in dist/ on this machine.\n" in script
    script = job_script(images, JobRequest(("python", "t.py"), image=DIGEST))
    assert f"# Image: that of target tiny in dist/ on this machine, {DIGEST}.\n" in script
    edit(images.recipe.source, format="sif", site={"runtime": {"kind": "apptainer"}, "launcher": "torchrun"})
    files = target_images(images.project, images.project.recipe("tiny"))
    script = job_script(files, JobRequest(("python", "t.py"), image="/a\necho of another line\n.sif"))
    head = script.partition("main() {")[0].splitlines()
    assert all(line.startswith("#") for line in head if line), head
    assert script.endswith("\nmain\n")
