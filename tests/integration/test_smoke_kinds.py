"""Real images without torch: their modules, a command of their own, JAX; published, or not tested at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.formats.oci.layout import list_tags
from tests.integration.conftest import Builder
from tests.support.project import edit
from tests.support.slurm import Slurm

RECIPE = """\
base: debian:bookworm
bytecode: none
environment: environments/own.yml
virtual_packages: {__glibc: "2.36"}
conda: {exclude_newer: 2026-11-01}
pip: {fallback: pip}
"""
ENVIRONMENT = """\
name: own
channels: [conda-forge, nodefaults]
dependencies: [python=3.11, pip, {{pip: [{packages}]}}]
"""


#: The tests' own Slurm, whose jobs run the build with builder itself.
SITE = {
    "title": "Here",
    "runtime": {"kind": "userns"},
    "node": {"cores": 2, "tasks": 1},
    "slurm": {"account": "optional", "queues": {"cpu": {"partition": "debug"}}},
}


def own_project(cache: Path, folder: Path, packages: str) -> Builder:
    """A project with one target, ``own``."""
    for name, text in (
        ("recipes/own.yaml", RECIPE),
        ("environments/own.yml", ENVIRONMENT.format(packages=packages)),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return Builder(folder, cache)


def measurement(result: Any, name: str) -> Any:
    return next(item for item in result["report"]["measurements"] if item["id"] == name)


def test_imports_command_and_none(cache: Path, tmp_path: Path) -> None:
    """An image of two packages needs no key to be published; after a change of the key it is tested again."""
    own = own_project(cache, tmp_path / "project", "pyyaml, more-itertools")
    recipe = own.root / "recipes" / "own.yaml"
    publish = ["publish", "own", "--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11", "--runner", "userns"]
    done = own.json(*publish)
    assert done["smoke"] in ("pass", "warn") and done["tags"] == ["26.11", "latest"]
    result = own.json("smoke", "own", "--runner", "userns")
    seen = measurement(result, "imports")["seen"]
    assert "yaml" in seen and "more_itertools" in seen

    edit(recipe, smoke={"command": ["python", "-c", "import yaml; print(yaml.safe_load('a: 1'))"]})
    assert "own command" in own.run(*publish).stderr
    result = own.json("smoke", "own", "--runner", "userns")
    assert measurement(result, "command")["output"] == ["{'a': 1}"]

    edit(recipe, smoke={"imports": ["yaml", "nosuch"]})
    failed = own.run(*publish, check=False)
    assert failed.returncode == 11 and "nosuch: ModuleNotFoundError" in failed.stderr
    edit(recipe, smoke={"none": "it is a test"})
    assert "not smoke-tested: it is a test" in own.run(*publish).stdout


@pytest.mark.heavy
def test_publish_through_a_job(cache: Path, slurm: Slurm, tmp_path: Path) -> None:
    """One command builds, pushes without tags, tests in a real job, and moves the tags."""
    own = own_project(cache, tmp_path / "project", "pyyaml")
    edit(own.root / "recipes" / "own.yaml", site=SITE)
    there = tmp_path / "there"
    env = {**slurm.env, "USER": "tester"}
    publish = ["publish", "own", "--to", f"oci:{there}", "--tag", "26.11", "--on", "slurm"]
    done = own.run(*publish, env=env)
    assert "job " in done.stderr and "on 1 node" in done.stderr and "26.11, latest" in done.stdout
    assert set(list_tags(there)) == {"26.11", "latest"}
    (report,) = (own.root / "reports" / "own").glob("*.json")
    assert json.loads(report.read_text())["image"]["runner"] == "slurm (userns)"
    assert "on record" in own.run(*publish, env=env).stderr

    edit(own.root / "recipes" / "own.yaml", smoke={"command": ["false"]}, registry={"tags": ["other"]})
    failed = own.run(*publish[:4], "--on", "slurm", env=env, check=False)
    assert failed.returncode == 11 and "fail command: exit code 1" in failed.stderr
    assert set(list_tags(there)) == {"26.11", "latest"}


@pytest.mark.heavy
def test_jax(cache: Path, tmp_path: Path) -> None:
    """A lock with JAX is tested with JAX: on this CPU."""
    own = own_project(cache, tmp_path / "project", "jax")
    result = own.json("smoke", "own", "--runner", "userns")
    assert result["verdict"] in ("pass", "warn") and result["report"]["test"] == {"framework": "jax"}
    assert measurement(result, "product")["correctness"]["ok"]
