"""Where the image of a target is on its site."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.deliver.site.runtimes.table import runtime_of
from builder.deliver.smoke.options import SlurmOptions
from builder.deliver.smoke.slurm import complete_job
from builder.lock.config.recipe import Recipe, load_recipe

HEAD = "base: oci:b\nenvironment: e.yml\nsite:\n"


def test_site_file(tmp_path: Path) -> None:
    """The SIF's path is known only on machines of the site."""
    project = tmp_path / "project"
    (project / "recipes").mkdir(parents=True)
    scratch = tmp_path / "scratch"
    text = (
        f"{HEAD}  runtime: {{kind: apptainer}}\n  launcher: torchrun\n  images: $SCRATCH/{{account}}/images\n"
    )
    (project / "recipes" / "one.yaml").write_text(text)
    recipe = load_recipe("one", project)

    def found(account: str = "def-x", **environ: str) -> Path | None:
        return runtime_of(recipe).site_file(account, environ)

    file = scratch / "def-x" / "images" / "one.sif"
    assert found() is None and found(SCRATCH=str(scratch)) is None and found(SCRATCH="") is None
    file.parent.parent.mkdir(parents=True)
    assert found(SCRATCH=str(scratch)) == file, "the folder of images can be created"
    file.parent.mkdir()
    assert found(SCRATCH=str(scratch)) == file
    assert (
        found("", SCRATCH=str(scratch)) is None
        and found("", SCRATCH=str(scratch), SLURM_JOB_ACCOUNT="def-x") == file
    )
    assert found(SCRATCH="scratch") is None, "a relative path depends on the current folder"
    text = text.replace("$SCRATCH/{account}/images", "$SCRATCH/images")
    (project / "recipes" / "one.yaml").write_text(text)
    assert runtime_of(load_recipe("one", project)).site_file("", {"SCRATCH": ""}) is None, (
        "no folder is created at the root"
    )
    (project / "recipes" / "one.yaml").write_text(HEAD + "  runtime: {kind: docker}\n  launcher: torchrun\n")
    assert runtime_of(load_recipe("one", project)).site_file("", {}) is None


def test_image_of_a_job(tmp_path: Path) -> None:
    """A job can be told to run one image and no other, with every runtime for OCI images."""
    (tmp_path / "recipes").mkdir()
    digest = "sha256:" + "a" * 64

    def recipe(kind: str, registry: str = "registry: {host: h.example, repository: a/b}\n") -> Recipe:
        text = f"{HEAD}  runtime: {{kind: {kind}}}\n  launcher: srun\n  slurm: {{account: optional}}\n"
        (tmp_path / "recipes" / "one.yaml").write_text(text + registry)
        return load_recipe("one", tmp_path)

    def image(recipe: Recipe) -> str:
        result: Any = SimpleNamespace(recipe=recipe, digest=digest, sif=None)
        return complete_job(SlurmOptions(), result, tmp_path).image

    assert image(recipe("podman")) == f"h.example/a/b@{digest}"
    with pytest.raises(UsageError, match=r"registry\.repository is not set"):
        image(recipe("podman", ""))
    with pytest.raises(UsageError) as raised:
        image(recipe("docker", ""))
    assert "builder build one --load docker makes builder/one:latest" in raised.value.hint
    here = recipe("userns")
    assert image(here) == digest
    job = plan_job(here, JobRequest(command=("true",), image=digest))
    at = f"builder --project {tmp_path} run one --digest {digest} "  # called from elsewhere
    assert at in " ".join(render(job).replace("\\\n", "").split())
