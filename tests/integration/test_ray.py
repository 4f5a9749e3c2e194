"""Ray and MLflow as on Chameleon: the script of ``builder job`` starts a cluster with docker compose and
submits a job."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import CLONE, Builder, new_project
from tests.support.parts import DockerEngine, need
from tests.support.ray import (
    ENVIRONMENT,
    IMAGE,
    RECIPE,
    Mlflow,
    example_in_container,
    mlflow_server,
    write_cluster,
)

#: A busy machine starts Ray and MLflow slowly.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def project(
    cpu: Builder, docker_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Builder]:
    """Targets ``tracked``, whose image is loaded into the engine, and ``cluster``."""
    root = new_project(tmp_path_factory.mktemp("tracked"), "cpu")
    shutil.copy(CLONE / "recipes" / "_common.yaml", root / "recipes")
    (root / "environments" / "tracked.yml").write_text(ENVIRONMENT)
    (root / "recipes" / "tracked.yaml").write_text(RECIPE)
    write_cluster(root)
    builder = Builder(root, cpu.cache)
    builder.run("build", "tracked", "--load", env={"DOCKER_HOST": docker_engine.host})
    yield builder
    docker_engine.client.images.remove(IMAGE, force=True)


@pytest.fixture(scope="module")
def mlflow(project: Builder, docker_engine: DockerEngine) -> Iterator[Mlflow]:
    with mlflow_server(docker_engine) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train_digits.py", "digits.csv.gz"):
        shutil.copy(CLONE / "examples" / name, tmp_path)
    return tmp_path


def events(output: str, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in output.splitlines() if line.startswith('{"event"')]
    return [e for e in found if e["event"] == event]


def values(run: dict[str, Any], kind: str) -> dict[str, Any]:
    return {item["key"]: item["value"] for item in run["data"].get(kind, [])}


def test_resumed_mlflow_run(docker_engine: DockerEngine, mlflow: Mlflow, folder: Path) -> None:
    """A resumed training continues its MLflow run."""
    own = {
        "MLFLOW_TRACKING_URI": mlflow.url,
        "MLFLOW_EXPERIMENT_NAME": "resumed",
        "BUILDER_CHECKPOINT_DIR": f"{folder}/ck",
    }
    first = example_in_container(
        docker_engine, folder, "train_digits.py", "--epochs", "2", "--tensorboard", "tb", **own
    )
    second = example_in_container(docker_engine, folder, "train_digits.py", "--epochs", "4", **own)
    assert not events(first + second, "warning")
    (run,) = mlflow.runs("resumed")
    number = run["info"]["run_id"]
    assert [e["run"] for e in events(first + second, "mlflow")] == [number, number]
    assert run["info"]["status"] == "FINISHED"
    output = {e["epoch"]: e for e in events(first + second, "epoch")}
    assert mlflow.history(number, "accuracy") == [(n, output[n]["accuracy"]) for n in (1, 2, 3, 4)]
    assert values(run, "params")["batch_size"] == "96"
    assert [p.name.startswith("events.out.tfevents") for p in (folder / "tb").iterdir()] == [True]


def test_unavailable_tracking_server(docker_engine: DockerEngine, project: Builder, folder: Path) -> None:
    """A training runs without its tracking server, with a warning."""
    own = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    output = example_in_container(docker_engine, folder, "train_digits.py", "--epochs", "1", **own)
    (warning,) = events(output, "warning")
    assert warning["message"].startswith("not logging to MLflow: ") and events(output, "done")


def test_ray_job(docker_engine: DockerEngine, project: Builder, mlflow: Mlflow, folder: Path) -> None:
    """The scripts of ``builder job`` for Chameleon, unchanged: docker compose, ray start, ray job submit. Two
    run at the same time, each with a cluster of its own."""
    need("docker-compose")
    command = ["python", "train_digits.py", "--epochs", "3"]
    options = [
        "--image",
        IMAGE,
        "--checkpoint",
        folder / "ck",
        "--mlflow",
        mlflow.url,
        "--env",
        "MLFLOW_EXPERIMENT_NAME=ray",
    ]
    project.run("job", "cluster", *options, "--output", folder / "job.sh", "--", *command)
    project.run("job", "cluster", "--image", IMAGE, "--output", folder / "other.sh", "--", "hostname")
    env = {**docker_engine.env, "USER": "tester"}

    def start(script: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(["bash", script], env=env, cwd=folder, stdout=pipe, stderr=pipe, text=True)

    running = [start("job.sh"), start("other.sh")]
    (out, err), (other, other_err) = [process.communicate(timeout=600) for process in running]
    assert running[0].returncode == 0, out + err
    assert running[1].returncode == 0, other + other_err
    assert "ray-worker-0" in other
    addresses = [re.findall(r"dashboard: (http://127[.]0[.]0[.]1:\d+)", text) for text in (err, other_err)]
    assert len(addresses[0]) == len(addresses[1]) == 1 and addresses[0] != addresses[1]
    (begin,), (end,) = events(out, "start"), events(out, "done")
    assert not events(out, "warning")
    assert (begin["host"], end["epochs"]) == ("ray-worker-0", 3)
    assert sorted(p.name for p in (folder / "ck").iterdir()) == ["digits-0002-0000.pt", "digits-0003-0000.pt"]
    (run,) = mlflow.runs("ray")
    assert values(run, "metrics")["accuracy"] == end["accuracy"]
    containers = docker_engine.client.containers.list(all=True)
    assert [c.name for c in containers if "ray-" in c.name] == []  # the jobs removed their clusters
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("tmp.*/compose.yaml"))
