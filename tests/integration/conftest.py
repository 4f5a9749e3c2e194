"""A project with target ``cpu``, built once for all tests that look at the finished image."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from builder.bases.resolve import resolve_base
from builder.errors import BuilderError
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import read_record
from tests.support.debian_channel import CHANNEL_FOLDER, channel_mirrors

CLONE = Path(__file__).parents[2]


#: Parts that take minutes to install or to use.
_HEAVY = {"apptainer", "docker_engine", "podman", "slurm", "torch_cpu", "torch_sif"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and those that use a heavy part."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
            if _HEAVY & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.heavy)


@dataclass(frozen=True)
class Builder:
    """The command line in its own project, with its own cache."""

    root: Path
    cache: Path

    def command(self, *args: str | Path) -> list[str]:
        return [
            sys.executable,
            "-m",
            "builder",
            "--project",
            str(self.root),
            "--cache",
            str(self.cache),
            *(str(a) for a in args),
        ]

    def run(
        self, *args: str | Path, env: Mapping[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``builder ARGS``; with ``check``, a failure fails the test with the output."""
        full = {**os.environ, "PYTHONPATH": str(CLONE), **(env or {})}
        done = subprocess.run(self.command(*args), env=full, capture_output=True, text=True)
        if check and done.returncode:
            command = " ".join(map(str, args))
            pytest.fail(f"builder {command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def json(self, *args: str | Path, env: Mapping[str, str] | None = None) -> Any:
        """The JSON that ``builder ARGS --json`` prints."""
        return json.loads(self.run(*args, "--json", env=env).stdout)


#: What target ``cpu`` holds in most tests: compiled modules, but a twentieth of torch's bytes.
SMALL = """\
name: cpu
channels: [conda-forge, nodefaults]
dependencies:
  - python=3.11
  - pip
  - pip: [numpy]
"""


def new_project(folder: Path, *targets: str, torch: bool = False) -> Path:
    """Make a project folder with copies of this repository's recipes and environments.

    Args:
        folder: gets them.
        targets: names of recipes.
        torch: target ``cpu`` has torch, as in this repository; else only numpy (:data:`SMALL`).
    """
    for name in ("recipes", "environments"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for target in targets:
        recipe = CLONE / "recipes" / f"{target}.yaml"
        shutil.copy(recipe, folder / "recipes")
        for line in recipe.read_text().splitlines():
            if line.startswith("environment:"):
                shutil.copy(CLONE / line.split(":")[1].strip(), folder / "environments")
    if "cpu" in targets and not torch:
        (folder / "environments" / "cpu.yml").write_text(SMALL)
    return folder


def keep_base(source: Path, target: Path) -> Path:
    """Copies the base image of one cache into a new one; bootstrapping Debian has its own tests."""
    shutil.copytree(source / "bases", target / "bases")
    (target / "blobs" / "sha256").mkdir(parents=True)
    records = [read_record(path) for path in (source / "bases").glob("*.json")]
    for record in records:
        manifest = source / "blobs" / "sha256" / record["digest"].partition(":")[2]
        data = json.loads(manifest.read_text())
        names = [*(d["digest"] for d in data["layers"]), data["config"]["digest"], record["digest"]]
        for name in names:
            shutil.copy(source / "blobs" / "sha256" / name.partition(":")[2], target / "blobs" / "sha256")
    return target


@pytest.fixture(scope="session", autouse=True)
def conda_channel() -> str:
    """Lets all commands find conda packages: BUILDER_MIRRORS names a channel where conda-forge is silent."""
    with contextlib.suppress(BuilderError):  # the tests that need a channel will name it
        if mirrors := channel_mirrors(CHANNEL_FOLDER):
            os.environ["BUILDER_MIRRORS"] = mirrors
    return os.environ.get("BUILDER_MIRRORS", "")


@pytest.fixture(scope="session")
def base_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the base ``debian:bookworm`` and nothing else; all workers share it and only read it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    cache = shared / "base-cache"
    with FileLock(shared / "base-cache.lock"):
        settings = Settings.from_environment(cache=cache)
        resolve_base("debian:bookworm", "amd64", settings, Store(cache))
    return cache


def _built(project: Path, cache: Path, base_cache: Path) -> Builder:
    """Build target ``cpu`` with a cache that all workers share."""
    builder = Builder(project, cache)
    with FileLock(cache.with_suffix(".lock")):
        if not builder.cache.exists():
            keep_base(base_cache, builder.cache)
        builder.run("build", "cpu")
    return builder


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory, base_cache: Path) -> Builder:
    """Target ``cpu`` with numpy alone, locked and built: a project for each worker, one cache for all."""
    project = new_project(tmp_path_factory.mktemp("cpu"), "cpu")
    return _built(project, base_cache.parent / "cpu-cache", base_cache)


@pytest.fixture(scope="session")
def torch_cpu(tmp_path_factory: pytest.TempPathFactory, base_cache: Path) -> Builder:
    """Target ``cpu`` as it is, with torch: 2 GB."""
    project = new_project(tmp_path_factory.mktemp("torch"), "cpu", torch=True)
    return _built(project, base_cache.parent / "torch-cache", base_cache)


@pytest.fixture(scope="module")
def module_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for a cache with images, removed after the module's tests unless one of them failed.

    pytest removes such folders only when all tests have ended: tens of GB until then.
    """
    failed = request.session.testsfailed
    folder = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])
    yield folder
    if request.session.testsfailed == failed:
        shutil.rmtree(folder, ignore_errors=True)


def _sif(builder: Builder, folder: Path, *, torch: bool) -> Path:
    """Build the packages of target ``cpu`` as a SIF, by a recipe that extends it."""
    project = new_project(folder, "cpu", torch=torch)
    (project / "recipes" / "cpu-sif.yaml").write_text("extends: cpu\nformat: sif\n")
    environments = project / "environments"
    shutil.copy(builder.root / "environments" / "cpu.cpu.lock.yml", environments / "cpu.cpu-sif.lock.yml")
    Builder(project, builder.cache).run("build", "cpu-sif")
    return project / "dist" / "cpu-sif.sif"


@pytest.fixture(scope="session")
def cpu_sif(cpu: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of :func:`cpu` as a SIF."""
    return _sif(cpu, tmp_path_factory.mktemp("sif"), torch=False)


@pytest.fixture(scope="session")
def torch_sif(torch_cpu: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of :func:`torch_cpu` as a SIF."""
    return _sif(torch_cpu, tmp_path_factory.mktemp("torch-sif"), torch=True)


def runner_environment(runner: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables by which builder finds a runner's engine, which the tests start or unpack."""
    if runner == "docker":
        return {"DOCKER_HOST": request.getfixturevalue("docker_engine").host}
    if runner == "podman":
        return dict(request.getfixturevalue("podman").env)
    if runner == "apptainer":
        part = request.getfixturevalue("apptainer")
        return {**part.env, "PATH": f"{part.path.parent}:{part.env.get('PATH', os.environ['PATH'])}"}
    return {}
