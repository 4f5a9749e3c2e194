"""The result of a build."""

from __future__ import annotations

from pathlib import Path

from builder.engines.base import BuildResult
from builder.model import Descriptor, Image, LockedBase, SifImage
from tests.support.engines import request


def test_artifact_is_what_the_target_runs(tmp_path: Path) -> None:
    """The SIF of a SIF target, although there is an OCI image behind it; else the image."""
    sif = SifImage(tmp_path / "x.sif", "sha256:sif", 7)
    image = Image((), b"", Descriptor("", "", 0), b"", Descriptor("", "sha256:image", 0))
    r = request(tmp_path)
    both = BuildResult(r.recipe, r.lock, LockedBase("", ""), sif, sif_source=image)
    assert both.sif is sif and both.image is image and both.digest == "sha256:sif"
    only = BuildResult(r.recipe, r.lock, LockedBase("", ""), image)
    assert only.sif is None and only.image is image and only.digest == "sha256:image"
