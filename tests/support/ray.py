"""An image with PyTorch, Ray, MLflow and TensorBoard, built by builder like any other, and what runs in it."""

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
from tests.support.slurm import free_ports

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
#: Chameleon's cluster on this machine: its ports are taken from it lest two runs of these tests meet.
CLUSTER = """\
extends: _chameleon
description: Chameleon's Ray cluster, without GPUs
base: debian:bookworm
environment: environments/tracked.yml
site:
  title: Here
  node: {{cores: 2}}
  ray: {{dashboard_port: {dashboard}, metrics_port: {metrics}, worker_cpus: 1, entrypoint_cpus: 1}}
"""


def cluster_recipe() -> str:
    """A recipe for :func:`builder.jobs.plan_job`, with ports that nobody listens on."""
    dashboard, metrics = free_ports(2)
    return CLUSTER.format(dashboard=dashboard, metrics=metrics)


@dataclass
class Mlflow:
    """A tracking server that this machine and its containers reach."""

    url: str
    container: Any
    engine: DockerEngine

    def ask(self, call: str, **what: Any) -> Any:
        """A call of MLflow's REST interface: ``experiments/search`` ..."""
        answer = httpx.post(f"{self.url}/api/2.0/mlflow/{call}", json=what, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """The runs of an experiment, in the order of their start; none where there is no such experiment."""
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
        """Steps and values of a metric."""
        url = f"{self.url}/api/2.0/mlflow/metrics/get-history"
        answer = (
            httpx.get(url, params={"run_id": run, "metric_key": metric}, timeout=30).raise_for_status().json()
        )
        return [(int(m["step"]), float(m["value"])) for m in answer.get("metrics", [])]


@contextlib.contextmanager
def mlflow_server(engine: DockerEngine) -> Iterator[Mlflow]:
    """``mlflow server`` in a container, on the address that a network of the engine has on this machine."""
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
        # it answers to these names only, against rebinding of names in browsers
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
    """Runs ``python ARGUMENTS`` in a folder of this machine, in a container; gives what it wrote."""
    words = ["run", "--rm", "--network=host", "-v", f"{folder}:{folder}", "-w", folder]
    words += [w for k, v in variables.items() for w in ("-e", f"{k}={v}")]
    done = engine.docker(*words, IMAGE, "python", *arguments, check=False)
    if done.returncode:
        pytest.fail(f"python {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
