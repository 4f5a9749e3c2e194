"""Small stand-ins for what the shipped recipes name: a conda channel, package indexes and base images."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement

from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.formats.oci.layout import write_layout
from builder.formats.oci.reference import Reference
from builder.lock.config.recipe import Recipe
from builder.lock.environment import read_environment
from builder.lock.spec import Spec
from tests.support.channel import index_channel, make_package
from tests.support.image_kit import base, image_above, layer, member
from tests.support.wheels import make_wheel

PYTORCH = "https://download.pytorch.org"
CONDA_FORGE = "https://conda.anaconda.org/conda-forge"
#: A time stamp after any month in which a test runs, in milliseconds.
LATER = 4102444800000  # 2100-01-01
_CONDA_SPEC = re.compile(
    r"[\w.-]+ *(?:(?:[=>]=?)(?P<version>[\w.*]+))?(?:<(?P<below>[\d.]+))?(?:=(?P<build>\S+))?"
)
#: Versions of python that a spec of two numbers stands for.
_PYTHONS = {"1.0": "3.11.9", "3.11": "3.11.9", "3.12": "3.12.3", "3.13": "3.13.1"}


@dataclass(frozen=True)
class Mirrors:
    """A folder with everything that the environments and bases of some recipes name."""

    folder: Path

    @property
    def index(self) -> str:
        """pip's index of the packages that no environment takes from another index."""
        return (self.folder / "simple").as_uri()

    def lines(self, hub: str = "") -> list[str]:
        """The lines of BUILDER_MIRRORS.

        Args:
            hub: what takes Docker Hub's place; empty: OCI layouts in the folder, as for other registries.
        """
        return [
            f"{CONDA_FORGE}={self.folder / 'conda-forge'}",
            f"{PYTORCH}={self.folder / 'pytorch'}",
            *([f"docker://docker.io={hub}"] if hub else []),
            *(f"docker://{path.name}={path}" for path in sorted((self.folder / "hubs").iterdir())),
        ]


def make_mirrors(folder: Path, recipes: Iterable[Recipe]) -> Mirrors:
    """Creates a channel, indexes and bases for recipes of one platform.

    A base of the kind ``sif:`` is not made: no shipped recipe has one.
    """
    platform = ""
    conda: set[tuple[str, str, str]] = set()
    wheels: set[tuple[str, str, str]] = set()
    store = Store(folder / "base-store")
    for target in recipes:
        assert platform in ("", target.platform), "one folder for each platform"
        platform = target.platform
        if target.base.startswith("docker://"):
            reference = Reference.parse(target.base)
            place = folder / "hubs" / reference.host / reference.repository
            write_layout(stand_in_base(store, platform), place, reference.ref, store)
        environment = read_environment(target.environment_path, target.platform)
        conda |= {_conda_package(spec) for spec in environment.conda}
        index = next(iter(environment.extra_index_urls), "")
        for spec in environment.pip:
            requirement = Requirement(spec.text)
            pins = [s.version for s in requirement.specifier]
            wheels.add((index if pins else "", requirement.name, pins[0] if pins else "1.0"))
    external = {package for package in conda if package[0] == "mpich"}
    _make_channel(folder / "conda-forge", conda - external, platform)
    _make_packages(folder / "conda-forge" / "label" / "mpi-external", external, platform)
    for index, name, version in sorted(wheels):
        _make_wheel(folder, index, name, version)
    return Mirrors(folder)


def _conda_package(spec: Spec) -> tuple[str, str, str]:
    """Name, version and build of a package that a spec accepts."""
    found = _CONDA_SPEC.fullmatch(spec.text)
    assert found is not None, spec.text
    version = (found["version"] or "*").replace("*", "") or "1.0"
    if spec.name == "python":
        version = _PYTHONS.get(version, version)
    return spec.name, version, (found["build"] or "0").replace("*", "_stand_in")


def _make_channel(folder: Path, packages: Iterable[tuple[str, str, str]], subdir: str) -> None:
    newer = {"share/stand-in/numpy": "99"}
    make_package(folder, "numpy", "99.0", files=newer, depends=["python"], timestamp=LATER, subdir=subdir)
    _make_packages(folder, packages, subdir)


def _make_packages(folder: Path, packages: Iterable[tuple[str, str, str]], subdir: str) -> None:
    for name, version, build in sorted(packages):
        depends = [] if name in ("python", "cuda-version") else ["python"]
        depends += ["__cuda >=12"] if build.startswith("cuda") else []
        files = {f"share/stand-in/{name}": version}
        if name == "python":
            files[f"bin/python{version.rpartition('.')[0]}"] = "#!/bin/sh\n"
        make_package(folder, name, version, build, files=files, depends=depends, subdir=subdir)
    index_channel(folder)


def _make_wheel(folder: Path, index: str, name: str, version: str) -> None:
    project = folder / (f"pytorch{index.removeprefix(PYTORCH)}" if index else "simple") / name
    project.mkdir(parents=True)
    module = name.replace("-", "_")
    # no module: no stand-in of python could compile it
    wheel = make_wheel(project, module, version, files={f"{module}/version.txt": f"{version}\n"})
    digest = sha256_file(wheel).removeprefix("sha256:")
    link = f'<a href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>'
    (project / "index.html").write_text(link)


def stand_in_base(store: Store, platform: str) -> Image:
    """A small base image for a platform."""
    below = base(layer(store, member("etc/"), member("etc/base", b"base\n"), title="bottom"))
    architecture = {"linux-64": "amd64", "linux-aarch64": "arm64"}[platform]
    below = replace(below, config={**below.config, "architecture": architecture})
    return image_above(below, (), platform=platform)
