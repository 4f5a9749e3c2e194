"""``builder services`` with a real engine: PostgreSQL, MLflow, Ray and Prometheus in one image that builder
makes, and moto as the S3 store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.services.state import package_file
from tests.integration.conftest import Builder, new_project
from tests.support import services
from tests.support.parts import DockerEngine, need
from tests.support.ports import free_ports

pytestmark = pytest.mark.heavy

TRAIN = """\
import os, socket
import mlflow, ray

print("driver", socket.gethostname(), os.environ["BUILDER_CHECKPOINT_DIR"])
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1)
def work():
    return socket.gethostname()

print("worker", ray.get(work.remote()))
with mlflow.start_run(run_name=os.environ["BUILDER_RUN_NAME"]):
    mlflow.log_metric("loss", 0.5)
    mlflow.log_text("hello", "note.txt")
"""


@dataclass(frozen=True)
class Servers:
    """The command line for one stack."""

    builder: Builder
    engine: DockerEngine
    store: services.Server
    folder: Path
    options: list[str]

    def run(self, *args: str, code: int = 0) -> Any:
        path = f"/usr/bin:{self.engine.env['PATH']}"  # where Debian's docker is
        env = {**self.engine.env, "BUILDER_SERVICES": str(self.folder), "PATH": path}
        done = self.builder.run("services", *args, env=env, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in args else done.stdout + done.stderr

    def up(self) -> dict[str, Any]:
        found = self.run("up", "services", *self.options, "--json")
        return {each["service"]: each for each in found["services"]}


@pytest.fixture
def servers(docker_engine: DockerEngine, tmp_path: Path) -> Iterator[Servers]:
    need("docker-compose")
    root = new_project(tmp_path / "project")
    text, environment = package_file("services.yaml"), package_file("services.yml")
    assert text and environment
    (root / "recipes/services.yaml").write_text(text)
    (root / "environments/services.yml").write_text(f"{environment}      - ray[default]=={services.RAY}\n")
    (root / "train.py").write_text(TRAIN)
    network = docker_engine.client.networks.create("services-store")
    network.reload()
    address = network.attrs["IPAM"]["Config"][0]["Gateway"]
    try:
        with services.object_store(address) as store:
            keys = tmp_path / "keys"
            keys.touch(mode=0o600)
            key, secret = store.env["AWS_ACCESS_KEY_ID"], store.env["AWS_SECRET_ACCESS_KEY"]
            keys.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
            ports = zip(("mlflow", "ray", "prometheus"), free_ports(3), strict=True)
            options = ["--s3", store.url, "--s3-keys", str(keys), "--workers", "1"]
            options += [f"--port={service}={port}" for service, port in ports]
            made = Servers(
                Builder(root, tmp_path / "cache"), docker_engine, store, tmp_path / "state", options
            )
            yield made
            if made.folder.exists():
                made.run("down", "--remove-data", "--yes")
    finally:
        network.remove()


def test_services(servers: Servers, docker_engine: DockerEngine) -> None:
    """From nothing to a tracked job, through a stop; then all of it is removed."""
    found = servers.up()  # builds the image and loads it
    assert {each["health"] for each in found.values()} == {"healthy"}
    assert found["mlflow"]["version"] == services.MLFLOW and found["ray-head"]["version"] == services.RAY
    _has_no_secrets(servers)

    folder = str(servers.builder.root)
    said = servers.run("submit", "--run", "first", "--folder", folder, "--", "python", "train.py")
    assert "driver ray-head s3://builder/checkpoints/" in said and "worker ray-worker-0" in said
    (artifact,) = services.objects(servers.store, "mlflow/")
    assert artifact.endswith("/artifacts/note.txt")

    url = f"{found['prometheus']['address']}/api/v1/targets"
    targets = httpx.get(url, timeout=120, trust_env=False).json()["data"]["activeTargets"]
    assert sorted(t["labels"]["instance"] for t in targets) == ["ray-head:8080", "ray-worker-0:8080"]

    servers.run("down")
    assert "missing" in servers.run("status", code=1)
    again = servers.up()
    runs = httpx.post(
        f"{again['mlflow']['address']}/api/2.0/mlflow/runs/search",
        json={"experiment_ids": ["1"]},
        timeout=120,
        trust_env=False,
    ).json()["runs"]
    assert [run["info"]["run_name"] for run in runs] == ["first"]

    servers.run("down", "--remove-data", "--yes")
    assert not servers.folder.exists()
    assert not [v.name for v in docker_engine.client.volumes.list() if v.name.startswith("builder-services-")]


def _has_no_secrets(servers: Servers) -> None:
    """Passwords are neither in the compose file nor in what the engine shows of containers."""
    password = (servers.folder / "pgpass").read_text().strip().rpartition(":")[2]
    token = (servers.folder / "ray-token").read_text()
    shown = (servers.folder / "compose.yaml").read_text()
    for container in servers.engine.client.containers.list():
        shown += json.dumps(container.attrs) + str(container.top())
    for secret in (password, token, servers.store.env["AWS_SECRET_ACCESS_KEY"]):
        assert len(secret) > 20 and secret not in shown
