"""The compose file of examples/chameleon on a Docker engine, and a training on its Ray cluster.

builder makes one image, of the recipe ``servers`` without MLflow. Ray, MLflow, and torch for CPUs are folders
that the containers mount. No worker reserves a GPU, and moto takes the place of Garage, whose image is in a
registry of images. Ray's nodes start one after the other: each must start within 30 s, which Ray does not let
us change.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import CLONE, Builder
from tests.support.package_folders import package_folder
from tests.support.parts import DockerEngine, docker_engine, need
from tests.support.waiting import until

pytestmark = [pytest.mark.heavy, pytest.mark.docker, pytest.mark.timeout(1800)]

DASHBOARD = "http://127.0.0.1:8265"
IMAGE = "builder/servers:latest"
PATH = "/ray/bin:/opt/conda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STORE = {"image": IMAGE, "environment": {}, "command": ["moto_server", "-H", "0.0.0.0", "-p", "3900"]}
BUCKET = "import boto3; boto3.client('s3').create_bucket(Bucket='builder')"
RUNS = """
import json, mlflow
(run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
artifacts = [a.path for a in mlflow.MlflowClient().list_artifacts(run.info.run_id, "checkpoint")]
print(json.dumps([run.info.status, artifacts, run.data.metrics]))
"""
SCRAPED = """
import json, urllib.request
with urllib.request.urlopen("http://prometheus:9090/api/v1/query?query=up%3D%3D1") as answer:
    print(len(json.load(answer)["data"]["result"]))
"""
NODES = """
import json, urllib.request
header = {"Authorization": "Bearer " + open("/run/secrets/ray-token").read().strip()}
asked = urllib.request.Request("http://127.0.0.1:8265/nodes?view=summary", headers=header)
with urllib.request.urlopen(asked) as answer:
    nodes = json.load(answer)["data"]["summary"]
print(sum(node["raylet"]["state"] == "ALIVE" for node in nodes))
"""


@dataclass
class Stack:
    """The servers of the compose file."""

    folder: Path
    env: dict[str, str]

    def compose(self, *words: str) -> str:
        """Runs docker-compose; fails the test with its output."""
        done = subprocess.run(
            ["docker-compose", *words], cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def python(self, program: str) -> Any:
        """Runs a program in the container of Ray's head; returns the JSON that it prints."""
        printed = self.compose("exec", "-T", "ray-head", "python", "-W", "ignore", "-c", program)
        return json.loads(printed.splitlines()[-1]) if printed.strip() else None

    def start(self, service: str, nodes: int) -> None:
        """Starts a node of Ray and waits for it; on a busy machine it starts more than once."""
        self.compose("up", "--detach", "--no-deps", service)

        def is_up() -> bool:
            time.sleep(4)  # each question takes processor time from the node that starts
            with contextlib.suppress(AssertionError):  # the head does not answer yet
                return bool(self.python(NODES) == nodes)
            return False

        until(is_up, 300)

    def train(self, epochs: int) -> list[dict[str, Any]]:
        """Submits the training and waits for its end. Returns its events."""
        job = ["--working-dir", "/tmp/job", "--", "python", "train_ray.py", "--epochs", str(epochs)]
        submit = ["ray", "job", "submit", "--address", DASHBOARD, *job, "--workers", "2"]
        log = self.compose("exec", "-T", "ray-head", *submit)
        return [json.loads(line) for line in dict.fromkeys(re.findall(r'\{"event": .*\}', log))]


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    need("docker-compose")
    with docker_engine(own_network=True) as started:
        yield started


@pytest.fixture(scope="module")
def stack(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("chameleon") / "project"
    shutil.copytree(CLONE / "examples/chameleon", folder, ignore=shutil.ignore_patterns("secrets", "dist"))
    environment = folder / "environments/servers.yml"
    environment.write_text(re.sub("(?m)^ *- mlflow==.*\n", "", environment.read_text()))
    builder = Builder(folder, folder.parent / "cache")
    builder.run("build", "servers", "--load", "docker", env=engine.env)
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    compose["services"]["s3"] = STORE
    for name, service in compose["services"].items():
        service.pop("deploy", None)
        if name not in ("postgres", "prometheus"):
            mounts = [f"{package_folder(part)}:/{part}" for part in ("ray", "torch")]
            service["volumes"] = [*service.get("volumes", ()), *mounts]
            service["environment"] |= {"PATH": PATH, "PYTHONPATH": "/ray:/torch"}
    (folder / "compose.yaml").write_text(json.dumps(compose))
    subprocess.run([folder / "secrets.sh"], check=True)
    ray = {"RAY_IMAGE": IMAGE, "WORKER_GPUS": "0", "WORKER_CPUS": "1"}
    started = Stack(folder, {**engine.env, **ray, "COMPOSE_HTTP_TIMEOUT": "300"})
    try:
        started.compose("up", "--detach", "s3", "mlflow", "prometheus")
        started.start("ray-head", 1)
        head = started.compose("ps", "-q", "ray-head").strip()
        engine.docker("cp", CLONE / "examples", f"{head}:/tmp/job")
        started.python(BUCKET)
        started.start("ray-worker-0", 2)
        started.start("ray-worker-1", 3)
        yield started
    finally:
        started.compose("down", "--volumes", "--timeout", "5")


def test_training(stack: Stack) -> None:
    """A job trains on both workers, resumes from its checkpoint in the S3 store, and logs into MLflow."""
    first = stack.train(2)
    assert [e["world_size"] for e in first if e["event"] == "start"] == [2]
    assert [e["epochs"] for e in first if e["event"] == "done"] == [2]
    (resumed,) = [e for e in stack.train(3) if e["event"] == "resume"]
    assert resumed["epoch"] == 2 and resumed["checkpoint"].startswith("builder/checkpoints/digits/")
    status, artifacts, metrics = stack.python(RUNS)
    assert status == "FINISHED" and artifacts == ["checkpoint/state.pt"]
    assert {"loss", "rank0/loss", "rank1/loss"} <= set(metrics)
    until(lambda: stack.python(SCRAPED) == 3)  # Prometheus asks each 15 s
