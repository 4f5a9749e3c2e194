"""The shipped environments for DeepCam: their git repositories come from a server on loopback.

Python, the base and the build requirements are real. The other packages are small stand-ins, because no conda
channel and no index for ROCm can be reached here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.config.recipe import load_recipe
from builder.lock.environment import read_environment
from builder.lock.file import read_lock
from builder.model import SifImage
from builder.run.base import RunOptions
from builder.run.select import find_runner
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import sha256_file
from builder.store.records import read_record
from tests.integration.conftest import CLONE, Builder
from tests.support.channel import index_channel, make_package
from tests.support.gitserver import GitServer, Repo
from tests.support.wheels import make_wheel

pytestmark = [pytest.mark.network, pytest.mark.root]
TARGETS = ("archer2-cpu", "archer2-gpu")
#: The repositories of DeepCam's requirements, with the packages that they have.
REPOSITORIES = {
    "ildoonet/pytorch-gradual-warmup-lr.git": "warmup_scheduler",
    "mlperf/logging.git": "mlperf_logging",
}
PYTORCH = "https://download.pytorch.org"


@dataclass
class Place:
    """A project with the two targets, and what stands in for the internet."""

    builder: Builder
    server: GitServer
    env: dict[str, str]


def make_channel(cpu: Builder, folder: Path) -> None:
    """A channel with the Python of the Debian channel and stand-ins for everything else."""
    shutil.copytree(cpu.cache / "channels" / "debian", folder)
    versions = {"mpich": "4.3.1", "mpi4py": "3.1.6"}
    for name in ("numpy", "h5py", "tensorboard", "mpich", "mpi4py", "torchvision"):
        version = versions.get(name, "1.0")
        make_package(folder, name, version, files={f"share/stand-in/{name}": name}, depends=["python"])
    make_package(folder, "pytorch", "2.7.1", "cpu_generic", files={"share/torch": ""}, depends=["python"])
    index_channel(folder)


def make_hub(cache: Path, folder: Path) -> None:
    """A registry's folder with the base of the cache as ``debian:bookworm-slim``."""
    [record] = [read_record(path) for path in (cache / "bases").glob("*.json")]
    shutil.copytree(cache / "blobs", folder / "blobs")
    manifest = folder / "blobs" / record["digest"].replace(":", "/")
    entry = {
        "mediaType": json.loads(manifest.read_text())["mediaType"],
        "digest": record["digest"],
        "size": manifest.stat().st_size,
        "annotations": {"org.opencontainers.image.ref.name": "bookworm-slim"},
    }
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))


def make_index(folder: Path) -> None:
    """The index of PyTorch for ROCm."""
    for name, version in (("torch", "2.9.1+rocm6.3"), ("torchvision", "0.24.1+rocm6.3")):
        project = folder / "whl/rocm6.3" / name
        project.mkdir(parents=True)
        wheel = make_wheel(project, name, version, files={f"{name}.py": ""})
        digest = sha256_file(wheel).removeprefix("sha256:")
        link = f'<a href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>'
        (project / "index.html").write_text(link)


def make_repositories(folder: Path) -> dict[str, str]:
    """The git repositories; returns the commit of each, by name."""
    commits = {}
    for name, module in REPOSITORIES.items():
        repo = Repo(folder / name)
        repo.write(
            "setup.py",
            f"from setuptools import setup\nsetup(name='{module}', version='1.0', packages=['{module}'])\n",
        )
        repo.write(f"{module}/__init__.py", "here = True\n")
        commits[name] = repo.commit()
    return commits


@pytest.fixture(scope="module")
def place(cpu: Builder, base_cache: Path, module_folder: Path) -> Iterator[Place]:
    folder = module_folder
    make_channel(cpu, folder / "conda-forge")
    make_hub(base_cache, folder / "hub/library/debian")
    make_index(folder / "pytorch")
    commits = make_repositories(folder / "git")
    project = folder / "project"
    for name in ("recipes", "environments"):
        shutil.copytree(CLONE / name, project / name, ignore=shutil.ignore_patterns("*.lock.yml"))
    for path in (project / "environments").glob("deepcam-*.yml"):
        text = path.read_text()
        for name, commit in commits.items():  # the commits of the stand-ins
            text, count = re.subn(rf"({re.escape(name)})@[0-9a-f]{{40}}", rf"\1@{commit}", text)
            assert count == 1, f"{path.name} does not name {name} with a commit"
        path.write_text(text)
    for target in TARGETS:  # the base of the test has a newer glibc than the sites' machines
        recipe = project / "recipes" / f"{target}.yaml"
        recipe.write_text(recipe.read_text() + 'virtual_packages: {__glibc: "2.36"}\n')
    server = GitServer(folder / "git")
    mirrors = [
        f"https://conda.anaconda.org/conda-forge={folder}/conda-forge",
        f"{PYTORCH}={folder}/pytorch",
        f"docker://docker.io={folder}/hub",
        f"https://github.com/={server.url}/",
    ]
    env = {"BUILDER_MIRRORS": "\n".join(mirrors)}
    yield Place(Builder(project, folder / "cache"), server, env)
    server.close()


@pytest.mark.parametrize("target", TARGETS)
def test_lock(target: str, place: Place) -> None:
    """The lock has every package, the git repositories with public addresses, and no trace of the mirror."""
    place.builder.run("lock", target, env=place.env)
    recipe = load_recipe(target, place.builder.root)
    lock = read_lock(recipe.lock_path)
    packages = {package.name: package for package in lock.packages}
    environment = read_environment(recipe.environment_path, recipe.platform, recipe.root)
    assert environment.requested <= packages.keys()
    sources = {package.source.url for package in lock.packages if package.source}
    assert sources == {f"https://github.com/{name}" for name in REPOSITORIES}
    assert place.server.host not in recipe.lock_path.read_text()
    assert (place.builder.root / "wheels").is_dir()


@pytest.mark.parametrize("target", TARGETS)
def test_build(target: str, place: Place, tmp_path: Path) -> None:
    """The image imports both; another machine builds the same digest without the git server."""
    builder = place.builder
    built = builder.json("build", target, env=place.env)
    code = "import mlperf_logging, warmup_scheduler; print(mlperf_logging.here, warmup_scheduler.here)"
    sif = SifImage(Path(built["sif"]), built["digest"], Path(built["sif"]).stat().st_size)
    settings = Settings.from_environment(cache=builder.cache)
    runner = find_runner(settings, Store(settings.cache), "userns")
    done = runner.run(sif, ["python", "-c", code], RunOptions(timeout_s=300))
    assert done.stdout.split() == ["True", "True"], done.stderr

    other = Builder(tmp_path / "project", tmp_path / "cache")
    shutil.copytree(builder.root, other.root, ignore=shutil.ignore_patterns("dist", "reports"))
    place.server.requests.clear()
    again = other.json("build", target, env=place.env)
    assert again["digest"] == built["digest"]
    assert not place.server.requests
