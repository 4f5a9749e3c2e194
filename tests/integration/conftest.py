"""A project with target ``cpu``, built once for all tests that look at the finished image."""

from __future__ import annotations

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
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import read_record
from tests.support.real_registries import NAMES, RealRegistry, real_registry

CLONE = Path(__file__).parents[2]


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


def new_project(folder: Path, *targets: str) -> Path:
    """A project folder with copies of this repository's recipes and environments."""
    for name in ("recipes", "environments"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for target in targets:
        recipe = CLONE / "recipes" / f"{target}.yaml"
        shutil.copy(recipe, folder / "recipes")
        for line in recipe.read_text().splitlines():
            if line.startswith("environment:"):
                shutil.copy(CLONE / line.split(":")[1].strip(), folder / "environments")
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


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory, base_cache: Path) -> Builder:
    """Target ``cpu``, locked and built: a project for each worker, and one cache of several GB for all."""
    shared = base_cache.parent
    builder = Builder(new_project(tmp_path_factory.mktemp("cpu"), "cpu"), shared / "cpu-cache")
    with FileLock(shared / "cpu-cache.lock"):
        if not builder.cache.exists():
            keep_base(base_cache, builder.cache)
        builder.run("build", "cpu")
    return builder


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
    """The packages of target ``cpu`` as a SIF, by a recipe that extends it."""
    folder = tmp_path_factory.mktemp("sif")
    project = new_project(folder, "cpu")
    (project / "recipes" / "cpu-sif.yaml").write_text("extends: cpu\nformat: sif\n")
    shutil.copy(
        cpu.root / "environments" / "cpu.cpu.lock.yml", project / "environments" / "cpu.cpu-sif.lock.yml"
    )
    Builder(project, cpu.cache).run("build", "cpu-sif")
    return project / "dist" / "cpu-sif.sif"


@pytest.fixture(scope="module", params=NAMES)
def any_registry(request: pytest.FixtureRequest) -> Iterator[RealRegistry]:
    """Each of three real registries, behind a proxy that can break connections."""
    with real_registry(request.param) as registry:
        yield registry


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
