"""The image of a target, without the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import Project, Settings, target_images
from builder.core.errors import ImageError, UsageError
from builder.deliver.launch.images import OwnImages
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
