"""The image of target ``cpu`` under everything that runs images, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from builder.net.pipconfig import pip_configuration
from tests.integration.conftest import CLONE, Builder, keep_base

TORCH = "import torch, sys; print(torch.ones(3).sum().item(), sys.prefix)"
SAID = "3.0 /opt/conda"


@pytest.fixture(scope="session")
def published(cpu: Builder, registry: Any) -> str:
    """The image in a registry; its reference by digest."""
    done = cpu.json("publish", "cpu", "--registry", registry.host, "--runner", "userns")
    assert done["smoke"] in ("pass", "warn")  # warn: other work on this machine
    assert set(done["tags"]) >= {"latest"} and len(done["tags"]) == 2
    return f"{done['reference']}@{done['digest']}"


def digest(cpu: Builder) -> str:
    return json.loads((cpu.root / "dist" / "index.json").read_text())["manifests"][0]["digest"]


def test_docker_loads_and_runs_it(cpu: Builder, docker_engine: Any, tmp_path: Path) -> None:
    archive = tmp_path / "cpu.tar"
    cpu.run("build", "cpu", "--docker-archive", archive)
    docker_engine.docker("load", "-i", archive)
    for user in ("0:0", "1234:1234"):
        said = docker_engine.docker(
            "run", "--rm", "--network=none", "--user", user, "builder/cpu:latest", "python", "-c", TORCH
        )
        assert said.stdout.strip() == SAID


def test_docker_pulls_the_same_digest(published: str, cpu: Builder, docker_engine: Any) -> None:
    docker_engine.docker("pull", published)
    image = docker_engine.client.images.get(published)
    assert image.attrs["RepoDigests"] == [published]
    for user in ("0:0", "1234:1234"):
        said = docker_engine.docker(
            "run", "--rm", "--network=none", "--user", user, published, "python", "-c", TORCH
        )
        assert said.stdout.strip() == SAID


def test_podman_runs_it_as_root_and_as_another_user(published: str, podman: Any) -> None:
    podman.run("pull", "--tls-verify=false", published)
    for user in ("0", "1234"):
        said = podman.run("run", "--rm", "--network=none", "--user", user, published, "python", "-c", TORCH)
        assert said.stdout.strip() == SAID


def test_skopeo_copies_it_without_changing_the_digest(
    published: str, cpu: Builder, podman: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    subprocess.run(
        [
            "skopeo",
            "copy",
            "--preserve-digests",
            "--src-tls-verify=false",
            f"docker://{published}",
            f"oci:{copy}:x",
        ],
        check=True,
        env=podman.env,
        capture_output=True,
    )
    assert (
        json.loads((copy / "index.json").read_text())["manifests"][0]["digest"]
        == published.rpartition("@")[2]
        == digest(cpu)
    )


@pytest.mark.parametrize("runner", ["userns", "podman", "docker", "apptainer"])
def test_the_smoke_test_passes_under_each_runner(
    runner: str, cpu: Builder, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    env: dict[str, str] = {}
    if runner == "docker":
        env = {"DOCKER_HOST": request.getfixturevalue("docker_engine").host}
    elif runner == "podman":
        env = dict(request.getfixturevalue("podman").env)
    elif runner == "apptainer":
        part = request.getfixturevalue("apptainer")
        env = {**part.env, "PATH": f"{part.path.parent}:{part.env.get('PATH', os.environ['PATH'])}"}
    said = cpu.json("smoke", "cpu", "--runner", runner, env=env)
    assert said["verdict"] in ("pass", "warn") and said["runner"] == runner
    jsonschema.validate(
        said["report"], json.loads((CLONE / "builder" / "smoke" / "report.schema.json").read_text())
    )
    training = next(m for m in said["report"]["measurements"] if m["id"] == "training")
    assert training["status"] == "pass"


def test_an_ordinary_user_builds_the_same_digest_and_runs_it(
    cpu: Builder, ordinary_user: Any, tmp_path: Path
) -> None:
    """Cold, with nothing but the lock: another user, another cache, another umask; the base comes from the layout by digest."""
    project = ordinary_user.tmp / "everywhere"
    shutil.copytree(cpu.root / "recipes", project / "recipes")
    shutil.copytree(cpu.root / "environments", project / "environments")
    # an ordinary user without subordinate ids cannot bootstrap Debian: he is given what the first build left, verified by digest
    cache = ordinary_user.tmp / "everywhere-cache"
    keep_base(cpu.cache, cache)
    for path in (ordinary_user.tmp, *ordinary_user.tmp.rglob("*")):
        os.chown(path, ordinary_user.uid, ordinary_user.uid)
    mine = Builder(project, cache)
    configured = (
        pip_configuration()
    )  # of whoever runs the tests: the lock may name files that only it leads to
    env = {
        "PYTHONPATH": str(CLONE),
        "PIP_FIND_LINKS": " ".join(configured.find_links),
        "PIP_EXTRA_INDEX_URL": " ".join(configured.extra_index_urls),
    }
    done = ordinary_user.run(
        ["sh", "-c", 'umask 077 && exec "$@"', "sh", *mine.command("build", "cpu", "--json")], env
    )
    assert json.loads(done.stdout)["digest"] == digest(cpu)
    said = ordinary_user.run(
        mine.command("smoke", "cpu", "--runner", "userns", "--budget", "5", "--json"), env
    )
    assert json.loads(said.stdout)["verdict"] in ("pass", "warn")


def test_a_cold_cache_gives_the_same_digest(cpu: Builder, tmp_path: Path) -> None:
    """Everything but the base is fetched and made anew, on one core and on four."""
    for jobs in ("1", "4"):
        cold = Builder(cpu.root, keep_base(cpu.cache, tmp_path / f"cache{jobs}"))
        said = cold.json("--jobs", jobs, "build", "cpu", "--layout", tmp_path / "dist")
        assert said["digest"] == digest(cpu)


def test_the_entry_point_starts_programs_and_shells(cpu: Builder, docker_engine: Any, published: str) -> None:
    run: Callable[..., Any] = lambda *a: docker_engine.docker("run", "--rm", "--network=none", *a)  # noqa: E731
    assert run(published, "sh", "-c", "command -v python && echo $CONDA_PREFIX").stdout.split() == [
        "/opt/conda/bin/python",
        "/opt/conda",
    ]
    assert "NOUSER=1" in run(published, "sh", "-c", "echo NOUSER=$PYTHONNOUSERSITE").stdout
    failed = docker_engine.docker(
        "run", "--rm", "--network=none", published, "sh", "-c", "exit 7", check=False
    )
    assert failed.returncode == 7
