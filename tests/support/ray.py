"""An image with PyTorch, Ray, MLflow and TensorBoard, and services that run in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.parts import DockerEngine
from tests.support.ports import free_ports

IMAGE = "builder/tracked:latest"
ENVIRONMENT = """\
name: tracked
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python=3.11
  - pip
  - pip:
      - --extra-index-url https://download.pytorch.org/whl/cpu
      - torch==2.13.0
      - numpy
      - ray[default]
      - mlflow
      - psutil
      - tensorboard
"""
RECIPE = """\
extends: cpu
description: training with Ray, MLflow and TensorBoard
environment: environments/tracked.yml
"""
#: Chameleon's cluster on this machine, with free ports, so that two test runs do not collide.
CLUSTER = """\
extends: _common
site: here
description: Chameleon's Ray cluster, without GPUs
base: debian:bookworm
environment: environments/tracked.yml
"""
CLUSTER_SITE = """\
extends: _chameleon
site:
  title: Here
  node: {{cores: 2}}
  ray: {{dashboard_port: {dashboard}, metrics_port: {metrics}, worker_cpus: 1, entrypoint_cpus: 1}}
"""


def write_cluster(root: Path) -> None:
    """Adds target ``cluster``: a Ray cluster on free ports."""
    dashboard, metrics = free_ports(2)
    site = CLUSTER_SITE.format(dashboard=dashboard, metrics=metrics)
    (root / "sites").mkdir()
    (root / "sites" / "here.yaml").write_text(site)
    (root / "recipes" / "cluster.yaml").write_text(CLUSTER)


@dataclass
class Mlflow:
    """A tracking server for this machine and its containers."""

    url: str
    container: Any
    engine: DockerEngine

    def ask(self, call: str, **what: Any) -> Any:
        """Calls MLflow's REST interface, such as ``experiments/search``."""
        answer = httpx.post(f"{self.url}/api/2.0/mlflow/{call}", json=what, timeout=120)
        answer.raise_for_status()
        return answer.json()

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """Returns the runs of an experiment in the order of their start; none if it does not exist."""
        found = self.ask("experiments/search", max_results=100, filter=f"name = '{experiment}'").get(
            "experiments", []
        )
        ids = [e["experiment_id"] for e in found]
        if not ids:
            return []
        return list(
            self.ask("runs/search", experiment_ids=ids, order_by=["attributes.start_time"]).get("runs", [])
        )

    def history(self, run: str, metric: str) -> list[tuple[int, float]]:
        """Returns the steps and values of a metric."""
        url = f"{self.url}/api/2.0/mlflow/metrics/get-history"
        wanted = {"run_id": run, "metric_key": metric}
        answer = httpx.get(url, params=wanted, timeout=120).raise_for_status().json()
        return [(int(m["step"]), float(m["value"])) for m in answer.get("metrics", [])]


@contextlib.contextmanager
def mlflow_server(engine: DockerEngine) -> Iterator[Mlflow]:
    """Runs ``mlflow server`` in a container, on the address of one of the engine's networks."""
    network = engine.client.networks.create("builder-mlflow")
    container = None
    try:
        network.reload()
        address = network.attrs["IPAM"]["Config"][0]["Gateway"]
        (port,) = free_ports(1)
        command = ["mlflow", "server", "--host", address, "--port", str(port), "--workers", "1"]
        command += [
            "--backend-store-uri",
            "sqlite:////tmp/mlflow.db",
            "--artifacts-destination",
            "/tmp/artifacts",
        ]
        # MLflow 3 answers only to known host names, against DNS rebinding
        command += ["--allowed-hosts", f"{address}:{port}"]
        container = engine.client.containers.run(IMAGE, command, network_mode="host", detach=True)
        url = f"http://{address}:{port}"
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            container.reload()
            if container.status == "exited" or time.monotonic() > end:
                pytest.fail(
                    f"mlflow server does not answer:\n{container.logs().decode()[-3000:]}", pytrace=False
                )
            time.sleep(0.2)
        yield Mlflow(url, container, engine)
    finally:
        if container is not None:
            container.remove(force=True)
        network.remove()


def example_in_container(engine: DockerEngine, folder: Path, *arguments: str, **variables: str) -> str:
    """Runs ``python ARGUMENTS`` in a container, in a folder of this machine. Returns its standard output."""
    words = ["run", "--rm", "--network=host", "-v", f"{folder}:{folder}", "-w", folder]
    words += [w for k, v in variables.items() for w in ("-e", f"{k}={v}")]
    done = engine.docker(*words, IMAGE, "python", *arguments, check=False)
    if done.returncode:
        pytest.fail(f"python {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
