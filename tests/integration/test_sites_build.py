"""Every recipe of the repository: locked, planned and built far from its site, with base, channel and indexes by BUILDER_MIRRORS.

The packages are small stand-ins under the names, versions and builds that the environments ask for, made from these very files.
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

#: Target cpu has a fixture of its own, and is built from real packages there.
TARGETS = [name for name in sorted(recipe_files(CLONE)) if name != "cpu"]
#: 2024-05-01; recipes take what was made before 2026-11-01.
LATER = 1795000000000  # 2026-11-18
PYTORCH = "https://download.pytorch.org"


def make_mirrors(folder: Path) -> list[str]:
    """A channel, indexes and bases with all that the recipes name; gives the pairs of BUILDER_MIRRORS."""
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
class Far:
    """A project with all recipes, where nothing of the outside world can be reached."""

    root: Path
    cache: Path
    mirrors: Path
    built: dict[str, Any] = field(default_factory=dict)

    def lock(self, target: str) -> dict[str, LockedPackage]:
        return {p.name: p for p in read_lock(load_recipe(target, self.root).lock_path).packages}


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, part_missing: Callable[[str], NoReturn]) -> Iterator[Far]:
    for tool in ("mksquashfs", "siftool"):
        if shutil.which(tool) is None:
            part_missing(f"{tool} is not here")
    folder = tmp_path_factory.mktemp("sites")
    mirrors = make_mirrors(folder / "mirrors")
    far = Far(folder / "project", folder / "cache", folder / "mirrors")
    for name in ("recipes", "environments"):
        shutil.copytree(CLONE / name, far.root / name, ignore=shutil.ignore_patterns("*.lock.yml"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("PIP_", "BUILDER_", "UV_"))]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", (folder / "mirrors" / "simple").as_uri())
        patch.setenv("BUILDER_MIRRORS", "\n".join(mirrors))
        patch.setenv("BUILDER_OFFLINE", "1")
        yield far


def command(far: Far, capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    code = run(cli, ["--project", str(far.root), "--cache", str(far.cache), *args, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("target", TARGETS)
def test_a_recipe_locks_plans_and_builds(target: str, far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe(target, far.root)
    command(far, capsys, "lock", target)
    text = recipe.lock_path.read_text()
    assert str(far.mirrors) not in text, "a lock names public places"
    lock = far.lock(target)
    environment = read_environment(recipe.environment_path, recipe.platform)
    assert {s.name for s in (*environment.conda, *environment.pip)} <= lock.keys()
    assert read_lock(recipe.lock_path).base is not None
    assert "numpy" not in lock or lock["numpy"].version != "99.0", "made after the recipe's exclude_newer"
    planned = command(far, capsys, "plan", target)
    assert planned["packages"] == len(lock) and planned["unknown_sizes"] == 0
    built = command(far, capsys, "build", target)
    far.built[target] = built
    if recipe.format == "sif":
        sif = far.root / "dist" / f"{target}.sif"
        assert (
            sif.read_bytes()[:64].startswith(b"#!/usr/bin/env run-singularity")
            and sha256_file(sif) == built["digest"]
        )
    else:
        whole(far.root / "dist", built["digest"])


def test_images_fit_their_sites(far: Far) -> None:
    """torch's build is that of the GPU, and the runtime takes what is built."""
    if far.built.keys() != set(TARGETS):
        pytest.skip("not all were built")
    for target in TARGETS:
        recipe = load_recipe(target, far.root)
        assert recipe.format == ("sif" if recipe.site.runtime.takes_sif else "oci"), target
        lock = far.lock(target)
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


def test_the_same_bytes_again(far: Far, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the locks, with an empty cache: one OCI image, one SIF on an OCI base, one SIF on a SIF."""
    for target in ("perlmutter", "alliance-fir", "lumi-g"):
        if target not in far.built:
            pytest.skip("not built")
        code = run(
            cli, ["--project", str(far.root), "--cache", str(tmp_path / "cache"), "build", target, "--json"]
        )
        out, err = capsys.readouterr()
        assert code == 0, err
        assert json.loads(out)["digest"] == far.built[target]["digest"], target
