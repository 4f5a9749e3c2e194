"""Locks, plans and builds every shipped recipe without network, with base, channel and indexes from
BUILDER_MIRRORS.

The packages are small stand-ins with the names, versions and builds that the shipped environments request.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from packaging.requirements import Requirement

from builder.cli import cli, run
from builder.config.recipe import load_recipe, recipe_files
from builder.lock.environment import read_environment
from builder.lock.file import read_lock
from builder.model import LockedPackage
from builder.oci.layout import write_layout
from builder.store.blobs import Store
from builder.store.files import sha256_file
from tests.integration.conftest import CLONE
from tests.support.channel import index_channel, make_package
from tests.support.image_kit import image
from tests.support.project import whole
from tests.support.sif import make_sif
from tests.support.wheels import make_wheel

#: The fixture ``cpu`` builds target cpu from real packages, test_deepcam.py those with git repositories.
TARGETS = [name for name in sorted(recipe_files(CLONE)) if name not in ("cpu", "archer2-cpu", "archer2-gpu")]
#: A time stamp after any month in which this test runs, in milliseconds.
LATER = 4102444800000  # 2100-01-01
PYTORCH = "https://download.pytorch.org"


def make_mirrors(folder: Path) -> list[str]:
    """Creates a channel, indexes and bases with everything that the recipes name. Returns lines of
    BUILDER_MIRRORS."""
    conda: set[tuple[str, str, str]] = set()
    wheels: set[tuple[str, str, str]] = set()
    for target in TARGETS:
        recipe = load_recipe(target, CLONE)
        environment = read_environment(recipe.environment_path, recipe.platform)
        for spec in environment.conda:
            found = re.fullmatch(
                r"[\w.-]+ *(?:(?:[=>]=?)(?P<version>[\w.*]+))?(?:<[\d.]+)?(?:=(?P<build>\S+))?", spec.text
            )
            assert found is not None, spec.text
            version = (found["version"] or "*").replace("*", "") or {"python": "3.11.9"}.get(spec.name, "1.0")
            version = "3.11.9" if version == "3.11" else version
            build = (found["build"] or "0").replace("*", "_stand_in")
            if spec.name == "cuda-version" or found["build"] is None or spec.name == "pytorch":
                conda.add((spec.name, version, build))
        (index,) = environment.extra_index_urls or ("",)
        for spec in environment.pip:
            requirement = Requirement(spec.text)
            pins = [s.version for s in requirement.specifier]
            wheels.add((index if pins else "", requirement.name, pins[0] if pins else "1.0"))
    channel = folder / "conda-forge"
    for name, version, build in sorted(conda):
        depends = [] if name in ("python", "cuda-version") else ["python"]
        depends += ["__cuda >=12"] if build.startswith("cuda") else []
        files = {f"share/stand-in/{name}": version}
        if name == "python":
            files[f"bin/python{version.rpartition('.')[0]}"] = "#!/bin/sh\n"
        make_package(channel, name, version, build, files=files, depends=depends)
    make_package(
        channel, "numpy", "99.0", files={"share/stand-in/numpy": "99"}, depends=["python"], timestamp=LATER
    )
    index_channel(channel)
    for index, name, version in sorted(wheels):
        project = folder / (f"pytorch{index.removeprefix(PYTORCH)}" if index else "simple") / name
        project.mkdir(parents=True)
        wheel = make_wheel(
            project, name.replace("-", "_"), version, files={f"{name.replace('-', '_')}.py": f"# {version}\n"}
        )
        digest = sha256_file(wheel).removeprefix("sha256:")
        (project / "index.html").write_text(
            f'<a href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>'
        )
    store = Store(folder / "base-store")
    write_layout(image(store), folder / "hub/library/debian", "bookworm-slim", store)
    make_sif(folder / "sif-images/lumi-rocm-rocm-5.6.1.sif")
    return [
        f"https://conda.anaconda.org/conda-forge={channel}",
        f"{PYTORCH}={folder}/pytorch",
        f"docker://docker.io={folder}/hub",
        f"/appl/local/containers/sif-images={folder}/sif-images",
    ]


@dataclass
class Isolated:
    """A project with all recipes, without access to the network."""

    root: Path
    cache: Path
    mirrors: Path
    built: dict[str, Any] = field(default_factory=dict)

    def lock(self, target: str) -> dict[str, LockedPackage]:
        return {p.name: p for p in read_lock(load_recipe(target, self.root).lock_path).packages}


@pytest.fixture(scope="module")
def isolated(
    tmp_path_factory: pytest.TempPathFactory, part_missing: Callable[[str], NoReturn]
) -> Iterator[Isolated]:
    for tool in ("mksquashfs", "siftool"):
        if shutil.which(tool) is None:
            part_missing(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("sites")
    mirrors = make_mirrors(folder / "mirrors")
    isolated = Isolated(folder / "project", folder / "cache", folder / "mirrors")
    for name in ("recipes", "environments"):
        shutil.copytree(CLONE / name, isolated.root / name, ignore=shutil.ignore_patterns("*.lock.yml"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("PIP_", "BUILDER_", "UV_"))]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", (folder / "mirrors" / "simple").as_uri())
        patch.setenv("BUILDER_MIRRORS", "\n".join(mirrors))
        patch.setenv("BUILDER_OFFLINE", "1")
        yield isolated


def command(isolated: Isolated, capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    code = run(cli, ["--project", str(isolated.root), "--cache", str(isolated.cache), *args, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("target", TARGETS)
def test_recipe(target: str, isolated: Isolated, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe is locked, planned and built."""
    recipe = load_recipe(target, isolated.root)
    command(isolated, capsys, "lock", target)
    text = recipe.lock_path.read_text()
    assert str(isolated.mirrors) not in text, "a lock contains public addresses"
    lock = isolated.lock(target)
    environment = read_environment(recipe.environment_path, recipe.platform)
    assert {s.name for s in (*environment.conda, *environment.pip)} <= lock.keys()
    assert read_lock(recipe.lock_path).base is not None
    assert "numpy" not in lock or lock["numpy"].version != "99.0", "newer than the recipe's exclude_newer"
    planned = command(isolated, capsys, "plan", target)
    assert planned["packages"] == len(lock) and planned["unknown_sizes"] == 0
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
        assert recipe.format == ("sif" if recipe.site.runtime.takes_sif else "oci"), target
        lock = isolated.lock(target)
        if recipe.gpu.vendor == "nvidia":
            assert (
                "cuda" in lock["pytorch"].url
                and lock["cuda-version"].version == recipe.virtual_packages["__cuda"]
            ), target
        elif recipe.gpu.vendor == "amd":
            assert lock["torch"].manager == "pip" and "+rocm" in lock["torch"].version, target
            assert lock["torch"].url.startswith(f"{PYTORCH}/whl/rocm"), target
        elif "pytorch" in lock:
            assert "cpu" in lock["pytorch"].url, target
        assert recipe.gpu.vendor == "none" or recipe.site.node.gpus, target


def test_reproducible(isolated: Isolated, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A build with an empty cache has the same digest: an OCI image, a SIF on an OCI base, a SIF on a SIF."""
    for target in ("perlmutter", "alliance-fir", "lumi-g"):
        if target not in isolated.built:
            pytest.skip("the target was not built")
        code = run(
            cli,
            ["--project", str(isolated.root), "--cache", str(tmp_path / "cache"), "build", target, "--json"],
        )
        out, err = capsys.readouterr()
        assert code == 0, err
        assert json.loads(out)["digest"] == isolated.built[target]["digest"], target
