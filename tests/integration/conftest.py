"""A project with target ``cpu``, built once for all tests that look at the finished image."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from benchmarks.measure import CommandFailed
from benchmarks.suite import Suite, open_suite
from builder.build.run.base import Runner
from builder.build.run.select import runners
from builder.core.errors import BuilderError
from builder.core.store.records import read_record
from builder.core.workspace import Workspace
from tests.support.debian_channel import CHANNEL_FOLDER, channel_mirrors
from tests.support.install import base_folder
from tests.support.install_registries import install_crane
from tests.support.package_folders import package_folder
from tests.support.parts import (
    DockerEngine,
    Registry,
    clean_environment,
    installed,
    need,
    need_root,
    part_folder,
    part_missing,
    start,
    stop,
    wait_for,
)
from tests.support.parts import docker_engine as docker_engine_of
from tests.support.ports import free_ports
from tests.support.programs import run_program
from tests.support.releases import Team, forget_settings

CLONE = Path(__file__).parents[2]


#: Fixtures and parameters that name a part which takes long to install or to use.
_HEAVY = {
    "any_docker",
    "apptainer",
    "cotainr",
    "docker",
    "docker_engine",
    "podman",
    "sid",
    "slurm",
    "torch",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and those that use a heavy part."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
            parameters = getattr(item, "callspec", None)
            values = parameters.params.values() if parameters else ()
            used = {*getattr(item, "fixturenames", ()), *(v for v in values if isinstance(v, str))}
            if _HEAVY & used:
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
        return run_program(self.command(*args), full, check=check)

    def json(self, *args: str | Path, env: Mapping[str, str] | None = None) -> Any:
        """The JSON that ``builder ARGS --json`` prints."""
        return json.loads(self.run(*args, "--json", env=env).stdout)


#: What target ``cpu`` holds in tests: compiled modules, but a twentieth of torch's bytes. Where torch is
#: tested, its folder (tests/support/package_folders.py) is mounted.
SMALL = """\
name: cpu
channels: [conda-forge, nodefaults]
dependencies:
  - python=3.11
  - pip
  - pip: [numpy]
"""


def new_project(folder: Path, *targets: str) -> Path:
    """Make a project folder with copies of this repository's recipes and environments.

    Args:
        folder: gets them.
        targets: names of recipes. Target ``cpu`` has numpy, and no torch (:data:`SMALL`).
    """
    for name in ("recipes", "environments"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for target in targets:
        recipe = CLONE / "recipes" / f"{target}.yaml"
        shutil.copy(recipe, folder / "recipes")
        for line in recipe.read_text().splitlines():
            if line.startswith("environment:"):
                shutil.copy(CLONE / line.split(":")[1].strip(), folder / "environments")
    if "cpu" in targets:
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
def base_cache() -> Path:
    """A cache with the base ``debian:bookworm`` and nothing else, which tests only read."""
    try:
        return base_folder(CLONE / ".cache/parts/base")
    except BuilderError as e:
        part_missing(f"no base: {e.message}")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that all workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path, base_cache: Path) -> Builder:
    """Target ``cpu`` with numpy, locked and built: a project for each worker, one cache for all."""
    project = new_project(tmp_path_factory.mktemp("cpu"), "cpu")
    builder = Builder(project, shared_folder / "cpu-cache")
    with FileLock(builder.cache.with_suffix(".lock")):
        if not builder.cache.exists():
            keep_base(base_cache, builder.cache)
        builder.run("build", "cpu")
    return builder


@pytest.fixture(scope="module")
def cache(module_folder: Path, base_cache: Path) -> Path:
    """One cache with the base for all tests of a module."""
    return keep_base(base_cache, module_folder / "cache")


@pytest.fixture(scope="session")
def torch() -> Path:
    """The folder with torch for CPUs, for PYTHONPATH: on this machine, or mounted into an image."""
    return package_folder("torch")


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


@pytest.fixture(scope="session")
def cpu_sif(cpu: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of :func:`cpu` as a SIF, by a recipe that extends it."""
    project = new_project(tmp_path_factory.mktemp("sif"), "cpu")
    (project / "recipes" / "cpu-sif.yaml").write_text("extends: cpu\nformat: sif\n")
    environments = project / "environments"
    shutil.copy(cpu.root / "environments" / "cpu.cpu.lock.yml", environments / "cpu.cpu-sif.lock.yml")
    Builder(project, cpu.cache).run("build", "cpu-sif")
    return project / "dist" / "cpu-sif.sif"


def runner_environment(runner: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables by which builder finds a runner's engine, which the tests start or unpack."""
    if runner == "docker":
        return {"DOCKER_HOST": request.getfixturevalue("docker_engine").host}
    if runner in ("podman", "apptainer"):
        return dict(request.getfixturevalue(runner).env)
    return {}


@pytest.fixture
def use_runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``use_runner(name)`` sets the variables of :func:`runner_environment`."""

    def use(runner: str) -> None:
        for name, value in runner_environment(runner, request).items():
            monkeypatch.setenv(name, value)

    return use


def working_runner(name: str, work: Workspace) -> Runner:
    """Return a runner by its name; skip the test if it does not work here."""
    runner = next(runner for runner in runners(work) if runner.name == name)
    if reason := runner.available():
        part_missing(reason)
    return runner


@pytest.fixture(scope="module")
def crane() -> Iterator[str]:
    """The address of ``crane registry serve`` (go-containerregistry)."""
    program = installed(install_crane, "crane")
    host = f"127.0.0.1:{free_ports(1)[0]}"
    with part_folder("cran") as folder:
        command = [program, "registry", "serve", "--address", host, "--disk", folder]
        process = start(command, folder / "log", clean_environment(HOME=folder))
        wait_for(lambda: _answers(host), process, folder / "log", "crane registry serve")
        yield host
        stop(process)


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test sees no credentials and folders of whoever runs it."""
    forget_settings(monkeypatch, tmp_path)


@pytest.fixture
def team(own_settings: None, registry: Registry, tmp_path: Path) -> Team:
    """A team whose image is at docker-registry."""
    return Team(tmp_path / "team", registry.host, f"attack/{tmp_path.name.replace('_', '-').strip('-')}")


@pytest.fixture(params=["distribution", "crane"])
def host(request: pytest.FixtureRequest) -> str:
    """The address of docker-registry, and that of go-containerregistry's registry."""
    own = request.param == "distribution"
    return request.getfixturevalue("registry").host if own else request.getfixturevalue("crane")


def _answers(host: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{host}/v2/", timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def sid() -> Iterator[Suite]:
    """A tree of Debian sid, whose Docker, podman and buildah are current; it sees /var/tmp and the clone."""
    need_root()
    need("mmdebstrap", "nsenter")
    try:
        with open_suite(CLONE) as suite:
            yield suite
    except CommandFailed as e:
        part_missing(str(e))


@pytest.fixture(scope="session", params=["20.10", "28.5 overlay2", "28.5 containerd"])
def any_docker(request: pytest.FixtureRequest) -> Iterator[DockerEngine]:
    """Docker of Debian 12, and Docker of sid with each of its two image stores."""
    if request.param == "20.10":
        yield request.getfixturevalue("docker_engine")
        return
    suite = request.getfixturevalue("sid")
    features = {"containerd-snapshotter": request.param.endswith("containerd")}
    with docker_engine_of(dockerd=suite.command("dockerd"), features=features) as engine:
        yield engine
