"""Recipes as of the sites, built elsewhere: BUILDER_MIRRORS names copies of base, channel and index."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.lock.file import read_lock
from builder.model import Image
from builder.oci.layout import write_layout
from builder.registry.client import RegistryClient
from builder.settings import Settings
from builder.sif.write import write_sif
from builder.store.blobs import Store
from tests.support import parts
from tests.support.image_kit import image
from tests.support.images import push_tagged
from tests.support.project import TinyProject, tiny_channel, whole
from tests.support.wheels import make_wheel

BASE_SIF = "/appl/local/containers/sif-images/lumi-rocm-rocm-5.6.1.sif"
RECIPE = """\
bytecode: none
base: {base}
environment: environments/site.yml
format: {format}
virtual_packages: {{__glibc: "2.36"}}
gpu: {{vendor: amd, architectures: [gfx90a]}}
registry: {{host: registry.example, repository: p/site}}
"""
ENVIRONMENT = """\
name: site
channels: [conda-forge, nodefaults]
dependencies:
  - python=3.11
  - greeter
  - pip:
      - --extra-index-url https://download.pytorch.org/whl/rocm6.3
      - site-wheel
"""
WHEEL = "https://download.pytorch.org/whl/rocm6.3/site-wheel/site_wheel-1.0%2Brocm6.3-py3-none-any.whl"


class Place:
    """Local copies of a channel, an index and base images; projects name the public ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tiny_channel(folder / "conda/conda-forge", bulk=1 << 12)
        wheels = folder / "pytorch/whl/rocm6.3/site-wheel"
        wheels.mkdir(parents=True)
        wheel = make_wheel(wheels, "site_wheel", "1.0+rocm6.3", files={"site_wheel.py": "x = 1\n"})
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (wheels / "index.html").write_text(
            f'<a href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>'
        )
        self.store = Store(folder / "base-store")
        self.base: Image = image(self.store)
        self.mirrors = [
            f"https://conda.anaconda.org/conda-forge={folder}/conda/conda-forge",
            f"https://download.pytorch.org={folder}/pytorch",
        ]

    def project(self, name: str, base: str, format: str = "oci") -> TinyProject:
        root = self.folder / name / "project"
        for sub in ("recipes", "environments"):
            (root / sub).mkdir(parents=True)
        (root / "recipes/site.yaml").write_text(RECIPE.format(base=base, format=format))
        (root / "environments/site.yml").write_text(ENVIRONMENT)
        return TinyProject(root, self.folder / name / "cache")

    def build(self, project: TinyProject, *mirrors: str, offline: bool = False) -> Any:
        done = self.run(project, "build", "site", "--json", mirrors=mirrors, offline=offline)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(
        self, project: TinyProject, *args: str, mirrors: tuple[str, ...] = (), offline: bool = False
    ) -> subprocess.CompletedProcess[str]:
        env: Mapping[str, str] = {
            **project.variables(),
            "PYTHONPATH": str(parts.CLONE),
            "BUILDER_MIRRORS": "\n".join([*self.mirrors, *mirrors]),
            **({"BUILDER_OFFLINE": "1"} if offline else {}),
        }
        command = [sys.executable, "-m", "builder", "--project", str(project.root), *args]
        return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("mirrors"))


def lock_of(project: TinyProject) -> Any:
    return read_lock(project.root / "environments/site.site.lock.yml")


def check_lock(project: TinyProject, place: Place, base: str) -> None:
    """The lock contains public addresses only, and the image names the public base."""
    text = (project.root / "environments/site.site.lock.yml").read_text()
    assert str(place.folder) not in text and "127.0.0.1" not in text
    lock = lock_of(project)
    assert lock.base.reference == base
    urls = {p.name: p.url for p in lock.packages}
    assert urls["site-wheel"] == WHEEL
    assert all(
        u.startswith("https://conda.anaconda.org/conda-forge/") for n, u in urls.items() if n != "site-wheel"
    )


@pytest.mark.parametrize("kind", ["registry", "oci:", "folder"])
def test_image_base(kind: str, place: Place, registry: parts.Registry) -> None:
    """An image as on Perlmutter: the base comes from a registry, a layout or a folder."""
    if kind == "registry":
        with RegistryClient(registry.host) as client:
            push_tagged(place.base, client, "mirror/library/debian", ["bookworm-slim"])
        mirror = f"docker://docker.io=docker://{registry.host}/mirror"
    else:
        write_layout(place.base, place.folder / "hub/library/debian", "bookworm-slim", place.store)
        mirror = f"docker://docker.io={'oci:' if kind == 'oci:' else ''}{place.folder}/hub"
    base = "docker://docker.io/library/debian:bookworm-slim"
    project = place.project(f"image-{kind.strip(':')}", base)
    built = place.build(project, mirror)
    check_lock(project, place, base)
    assert lock_of(project).base.digest == place.base.digest
    whole(project.root / "dist", built["digest"])
    manifest = json.loads((project.root / "dist/blobs" / built["digest"].replace(":", "/")).read_bytes())
    assert manifest["annotations"]["org.opencontainers.image.base.name"].endswith(
        "library/debian:bookworm-slim"
    )
    assert {d["digest"] for d in manifest["layers"]} >= {x.descriptor.digest for x in place.base.layers}
    shutil.rmtree(project.cache)
    assert place.build(project, mirror, offline=True)["digest"] == built["digest"], (
        "again from nothing, and without network"
    )


def test_sif_base(place: Place) -> None:
    """A SIF as on LUMI: the base is a SIF of the site."""
    settings = Settings.from_environment({"HOME": str(place.folder)}, cache=place.folder / "base-store")
    copy = place.folder / "appl/containers/sif-images/lumi-rocm-rocm-5.6.1.sif"
    copy.parent.mkdir(parents=True)
    sif = write_sif(place.base, copy, settings, place.store)
    project = place.project("sif", f"sif:{BASE_SIF}", "sif")
    missing = place.run(project, "lock", "site")
    assert missing.returncode == 8 and f"{BASE_SIF} does not exist" in missing.stderr
    mirror = f"/appl/local={place.folder}/appl"
    built = place.build(project, mirror)
    check_lock(project, place, f"sif:{BASE_SIF}")
    assert lock_of(project).base.digest == sif.digest
    file = project.root / "dist/site.sif"
    assert f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" == built["digest"]
    shutil.rmtree(project.cache)
    assert place.build(project, mirror, offline=True)["digest"] == built["digest"]
