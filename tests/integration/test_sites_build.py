"""Locks and builds every shipped recipe without network, with base, channel and indexes from
BUILDER_MIRRORS.

The packages are small stand-ins with the names, versions and builds that the shipped environments request.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder.cli import cli, run
from builder.core.model import LockedPackage
from builder.core.store.files import sha256_file
from builder.deliver.site.lockchecks import job_warnings
from builder.deliver.site.request import JobRequest
from builder.lock.config.recipe import load_recipe, recipe_files
from builder.lock.environment import read_environment
from builder.lock.file import read_lock
from tests.integration.conftest import CLONE
from tests.support.documents import checked
from tests.support.parts import need
from tests.support.project import whole
from tests.support.sitemirrors import PYTORCH, Mirrors, make_mirrors

#: The fixture ``cpu`` builds target cpu from real packages.
ELSEWHERE = ("cpu", "cpu-jax")


def distinct_targets() -> list[str]:
    """The shipped targets, without those whose image has the same packages, base and format as another's."""
    found: dict[tuple[object, ...], str] = {}
    for name in sorted(recipe_files(CLONE)):
        recipe = load_recipe(name, CLONE)
        environment = read_environment(recipe.environment_path, recipe.platform)
        image = (recipe.environment, recipe.base, recipe.platform, recipe.format, bool(recipe.cmd))
        if name not in ELSEWHERE and not environment.sources:
            found.setdefault(image, name)
    return sorted(found.values())


TARGETS = distinct_targets()


@dataclass
class Isolated:
    """A project with all recipes, without access to the network."""

    root: Path
    cache: Path
    mirrors: dict[str, Mirrors]
    """By platform."""
    built: dict[str, Any] = field(default_factory=dict)

    def lock(self, target: str) -> dict[str, LockedPackage]:
        return {p.name: p for p in read_lock(load_recipe(target, self.root).lock_path).packages}


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Isolated]:
    need("mksquashfs", "siftool")
    folder = tmp_path_factory.mktemp("sites")
    recipes = [load_recipe(target, CLONE) for target in TARGETS]
    mirrors = {
        platform: make_mirrors(folder / platform, [r for r in recipes if r.platform == platform])
        for platform in {recipe.platform for recipe in recipes}
    }
    isolated = Isolated(folder / "project", folder / "cache", mirrors)
    for name in ("recipes", "environments"):
        shutil.copytree(CLONE / name, isolated.root / name, ignore=shutil.ignore_patterns("*.lock.yml"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("PIP_", "BUILDER_", "UV_"))]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("BUILDER_OFFLINE", "1")
        yield isolated


def command(isolated: Isolated, capsys: pytest.CaptureFixture[str], name: str, target: str) -> Any:
    """Runs a command for a target, with the mirrors of its platform; returns its JSON result."""
    mirrors = isolated.mirrors[load_recipe(target, isolated.root).platform]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", mirrors.index)
        patch.setenv("BUILDER_MIRRORS", "\n".join(mirrors.lines()))
        places = ["--project", str(isolated.root), "--cache", str(isolated.cache)]
        code = run(cli, [*places, name, target, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return checked(json.loads(out))


@pytest.mark.parametrize("target", TARGETS)
def test_recipe(target: str, isolated: Isolated, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe is locked and built."""
    recipe = load_recipe(target, isolated.root)
    command(isolated, capsys, "lock", target)
    text = recipe.lock_path.read_text()
    assert str(isolated.root.parent) not in text, "a lock contains public addresses"
    lock = isolated.lock(target)
    environment = read_environment(recipe.environment_path, recipe.platform)
    assert {s.name for s in (*environment.conda, *environment.pip)} <= lock.keys()
    assert read_lock(recipe.lock_path).base is not None
    assert "numpy" not in lock or lock["numpy"].version != "99.0", "newer than the recipe's exclude_newer"
    built = command(isolated, capsys, "build", target)
    isolated.built[target] = built
    if recipe.format == "sif":
        sif = isolated.root / "dist" / f"{target}.sif"
        assert (
            sif.read_bytes()[:64].startswith(b"#!/usr/bin/env run-singularity")
            and sha256_file(sif) == built["digest"]
        )
    else:
        whole(isolated.root / "dist", built["digest"])


def test_images_match_their_sites(isolated: Isolated) -> None:
    """The build of torch matches the GPU, and the runtime supports the image's format."""
    if isolated.built.keys() != set(TARGETS):
        pytest.skip("some targets were not built")
    for target in TARGETS:
        recipe = load_recipe(target, isolated.root)
        assert recipe.format == ("sif" if recipe.site.runtime.family == "sif" else "oci"), target
        lock = isolated.lock(target)
        if recipe.gpu.vendor == "nvidia":
            assert "cuda" in lock["pytorch"].url, target
            major, driver = lock["cuda-version"].version.split(".")[0], recipe.virtual_packages["__cuda"]
            assert int(major) <= int(driver.split(".")[0]), f"{target}: the driver is for CUDA {driver}"
        elif recipe.gpu.vendor == "amd":
            assert lock["torch"].manager == "pip" and "+rocm" in lock["torch"].version, target
            assert lock["torch"].url.startswith(f"{PYTORCH}/whl/rocm"), target
        elif "pytorch" in lock:
            assert "cpu" in lock["pytorch"].url, target
        assert recipe.gpu.vendor == "none" or recipe.site.node.gpus, target
        locked = read_lock(recipe.lock_path)
        assert not list(job_warnings(recipe, locked, JobRequest())), "the image's MPI hides the site's"
