"""New sites."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import get_args

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.newsite import new_site
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.config.recipe import load_recipe
from builder.lock.config.site import GpuVendor, RuntimeKind
from builder.lock.config.sites import site_files


@pytest.mark.parametrize("runtime", [kind for kind in get_args(RuntimeKind) if kind != "userns"])
@pytest.mark.parametrize("gpu", get_args(GpuVendor))
def test_new_site(runtime: RuntimeKind, gpu: GpuVendor, tmp_path: Path) -> None:
    """A recipe can name the new site, and a job of it is valid bash."""
    path = new_site(tmp_path, "mine", runtime, gpu)
    (tmp_path / "recipes/one.yaml").write_text(
        "site: mine\nenvironment: e.yml\nregistry: {host: h.example, repository: p/x}\n"
    )
    recipe = load_recipe("one", tmp_path)
    assert site_files(tmp_path)["mine"] == path and recipe.site.slurm is not None
    script = render(plan_job(recipe, JobRequest(command=("python", "t.py"), nodes=2)))
    assert {"edf": "--environment=", "pyxis": "--container-image="}.get(runtime, f"{runtime} ") in script
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_existing_site(tmp_path: Path) -> None:
    new_site(tmp_path, "mine", "apptainer", "none")
    with pytest.raises(UsageError, match="site mine exists already"):
        new_site(tmp_path, "mine", "apptainer", "none")
    with pytest.raises(UsageError, match="site lumi-g exists already: .*sitefiles/lumi-g.yaml"):
        new_site(tmp_path, "lumi-g", "apptainer", "none")


@pytest.mark.parametrize("name", ["My Site", "_base", "../x", ""])
def test_invalid_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid name of a site"):
        new_site(tmp_path, name, "apptainer", "none")
