"""Real images without torch: their modules, a command of their own, JAX; published, or not tested at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Builder
from tests.support.project import edit

RECIPE = """\
base: debian:bookworm
environment: environments/own.yml
virtual_packages: {{__glibc: "2.36"}}
conda: {{fallback: debian, exclude_newer: 2026-11-01}}
pip: {{fallback: pip}}
{smoke}
"""
ENVIRONMENT = """\
name: own
channels: [conda-forge, nodefaults]
dependencies: [python=3.11, pip, {{pip: [{packages}]}}]
"""


def own_project(cpu: Builder, folder: Path, packages: str, smoke: str = "") -> Builder:
    """A project with one target, ``own``, that uses the cache of target ``cpu``."""
    for name, text in (
        ("recipes/own.yaml", RECIPE.format(smoke=smoke)),
        ("environments/own.yml", ENVIRONMENT.format(packages=packages)),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return Builder(folder, cpu.cache)


def measurement(result: Any, name: str) -> Any:
    return next(item for item in result["report"]["measurements"] if item["id"] == name)


def test_imports_command_and_none(cpu: Builder, tmp_path: Path) -> None:
    """An image of two packages needs no key to be published; after a change of the key it is tested again."""
    own = own_project(cpu, tmp_path / "project", "pyyaml, more-itertools")
    recipe = own.root / "recipes" / "own.yaml"
    publish = ["publish", "own", "--to", f"oci:{tmp_path / 'there'}", "--tag", "26.11", "--runner", "userns"]
    done = own.json(*publish)
    assert done["smoke"] in ("pass", "warn") and done["tags"] == ["26.11", "latest"]
    result = own.json("smoke", "own", "--runner", "userns")
    names = {item["name"] for item in measurement(result, "imports")["modules"]}
    assert names >= {"yaml", "more_itertools"}

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
def test_jax(cpu: Builder, tmp_path: Path) -> None:
    """A lock with JAX is tested with JAX: on this CPU."""
    own = own_project(cpu, tmp_path / "project", "jax")
    result = own.json("smoke", "own", "--runner", "userns")
    assert result["verdict"] in ("pass", "warn") and result["report"]["test"] == {"framework": "jax"}
    assert measurement(result, "matmul.fp32")["correctness"]["ok"]
    assert measurement(result, "training")["correctness"]["value"] > 0.9
