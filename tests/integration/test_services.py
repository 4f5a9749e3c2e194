"""A training on a Ray cluster with real servers: MLflow on PostgreSQL, checkpoints and artifacts in an S3
store, Prometheus. One worker is killed, and the training resumes.

The S3 store is moto's; the other servers are the real ones, see tests/support/services.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.parts import CLONE, wait_for
from tests.support.ray import Mlflow
from tests.support.services import (
    BUCKET,
    RAY,
    RayCluster,
    Server,
    mlflow_server,
    object_store,
    objects,
    postgres,
    prometheus,
    python,
    ray_cluster,
    services_venv,
    start_worker,
)
from tests.support.torch_part import torch_folder

#: A busy machine starts Ray and MLflow slowly.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

DASHBOARD = CLONE / "builder/services/files/dashboard.json"
EXPERIMENT = "killed"
EPOCHS = 4
#: Generous: a busy machine starts Ray's workers slowly.
PATIENCE_S = 400
#: Ray has these metrics of nodes with GPUs only; their names are read from Ray's own source.
GPU_METRICS = re.compile(r"ray_node_(gpu|gram)")


@dataclass(frozen=True)
class Stack:
    """The running servers."""

    store: Server
    mlflow: Mlflow
    database: str
    cluster: RayCluster
    prometheus: Server

    def query(self, call: str, **parameters: str) -> Any:
        """The data of Prometheus's answer."""
        url = f"{self.prometheus.url}/api/v1/{call}"
        answer = httpx.get(url, params=parameters, timeout=120, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def job(self, name: str) -> dict[str, Any]:
        """What Ray reports about a job."""
        header = {"Authorization": f"Bearer {self.cluster.token}"}
        url = f"{self.cluster.url}/api/jobs/{name}"
        answer = httpx.get(url, headers=header, timeout=120, trust_env=False)
        return dict(answer.raise_for_status().json())

    def has_checkpoint(self) -> bool:
        """Whether Ray's controller knows a checkpoint; an upload before that is lost with a worker."""
        keys = {"list-type": "2", "prefix": f"{EXPERIMENT}/"}
        header = {"Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request"}
        url = f"{self.store.url}/{BUCKET}"
        text = httpx.get(url, params=keys, headers=header, timeout=120, trust_env=False).text
        return "checkpoint_manager_snapshot.json" in text

    def wait(self, what: str, happened: Callable[[], bool]) -> None:
        """Waits for an event, and leaves the processors to what it waits for."""

        def now() -> bool:
            time.sleep(0.5)
            return happened()

        head = self.cluster.processes["head"]
        wait_for(now, head, self.cluster.folder / "head.log", what, PATIENCE_S)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with contextlib.ExitStack() as running:
        database = running.enter_context(postgres())
        store = running.enter_context(object_store())
        # Without the processes for jobs of generative AI, which take long to start.
        own = {**store.env, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        tracking = running.enter_context(mlflow_server(database, f"s3://{BUCKET}/mlflow", own))
        env = {
            **store.env,
            "PATH": f"{services_venv()}/bin:/usr/bin:/bin",
            "PYTHONPATH": str(torch_folder()),
            "MLFLOW_TRACKING_URI": tracking.url,
            "MLFLOW_EXPERIMENT_NAME": EXPERIMENT,
            "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "true",
            "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "1",
            "BUILDER_CHECKPOINT_DIR": f"s3://{BUCKET}/{EXPERIMENT}",
        }
        cluster = running.enter_context(ray_cluster(2, env=env))
        targets = json.dumps([f"127.0.0.1:{port}" for port in cluster.metrics])
        scrape = f"{{job_name: ray, scrape_interval: 1s, static_configs: [{{targets: {targets}}}]}}"
        measured = running.enter_context(prometheus(f"scrape_configs: [{scrape}]\n"))
        client = Mlflow(tracking.url, None, None)  # type: ignore[arg-type]
        yield Stack(store, client, database, cluster, measured)
        for name in list(cluster.processes):
            cluster.kill(name)  # quicker than an orderly end


def events(stack: Stack, job: str) -> list[dict[str, Any]]:
    """The events of a job, in their order. Nodes with one address share the files from which Ray collects
    them, so that it prints each several times.
    """
    log = stack.cluster.ray("job", "logs", job).stdout
    lines = dict.fromkeys(re.findall(r'\{"event": .*\}', log))
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def killed(stack: Stack) -> list[dict[str, Any]]:
    """Trains with two workers, kills one of them, and starts it again. Returns the events of the job."""
    command = ["python", "train_ray.py", "--epochs", str(EPOCHS), "--workers", "2", "--pause", "0.8"]
    options = ["--no-wait", "--submission-id", "killed", "--working-dir", str(CLONE / "examples")]
    stack.cluster.ray("job", "submit", *options, "--", *command)
    stack.wait("the first checkpoint", lambda: stack.has_checkpoint() or ended(stack, "killed"))
    assert stack.job("killed")["status"] == "RUNNING", stack.cluster.ray("job", "logs", "killed").stdout
    stack.cluster.kill("worker-1")
    start_worker(stack.cluster, 1)
    stack.wait("the end of the job", lambda: ended(stack, "killed"))
    log = stack.cluster.ray("job", "logs", "killed").stdout
    assert stack.job("killed")["status"] == "SUCCEEDED", log
    return events(stack, "killed")


def ended(stack: Stack, job: str) -> bool:
    return stack.job(job)["status"] in ("SUCCEEDED", "FAILED", "STOPPED")


def test_resume(killed: list[dict[str, Any]]) -> None:
    """The training resumes from its checkpoint in the S3 store when a worker is lost."""
    starts = [e for e in killed if e["event"] == "start"]
    (resumed,) = [e for e in killed if e["event"] == "resume"]
    assert [e["epoch"] for e in starts] == [0, resumed["epoch"]] and resumed["epoch"] >= 1
    assert [e["world_size"] for e in starts] == [2, 2]
    assert resumed["checkpoint"].startswith(f"{BUCKET}/{EXPERIMENT}/digits/checkpoint_")
    assert [e["epochs"] for e in killed if e["event"] == "done"] == [EPOCHS]


def test_one_run(stack: Stack, killed: list[dict[str, Any]]) -> None:
    """Both workers log into one run, before and after the loss; its artifact is in the S3 store."""
    (run,) = stack.mlflow.runs(EXPERIMENT)
    number = run["info"]["run_id"]
    assert run["info"]["status"] == "FINISHED"
    metrics = {metric["key"] for metric in run["data"]["metrics"]}
    assert {"loss", "rank0/loss", "rank1/loss"} <= metrics
    for rank in (0, 1):
        assert f"system/rank{rank}/cpu_utilization_percentage" in metrics
    assert {step for step, _ in stack.mlflow.history(number, "rank1/loss")} == set(range(1, EPOCHS + 1))
    values = dict(stack.mlflow.history(number, "loss"))
    assert values == {e["epoch"]: e["loss"] for e in killed if e["event"] == "epoch"}

    found = objects(stack.store)
    assert any(
        key.startswith("mlflow/") and key.endswith(f"{number}/artifacts/checkpoint/state.pt") for key in found
    )
    checkpoints = {key.split("/")[2] for key in found if "/checkpoint_2" in key}
    assert len(checkpoints) == 2  # the newest two


def test_database(stack: Stack, killed: list[dict[str, Any]]) -> None:
    """MLflow's run is in PostgreSQL."""
    program = """
        import psycopg2, sys
        with psycopg2.connect(sys.argv[1]) as connection, connection.cursor() as cursor:
            cursor.execute("select status from runs")
            print(cursor.fetchall())
    """
    uri = stack.database.replace("postgresql+psycopg2:", "postgresql:")
    assert python(program, uri).strip() == "[('FINISHED',)]"


def test_prometheus(stack: Stack, killed: list[dict[str, Any]]) -> None:
    """Prometheus has scraped all nodes, which show the training."""
    scraped = {
        r["metric"]["instance"] for r in stack.query("query", query="max_over_time(up[1h]) == 1")["result"]
    }
    assert scraped == {f"127.0.0.1:{port}" for port in stack.cluster.metrics[:3]}
    assert stack.query("query", query="max_over_time(ray_node_cpu_utilization[1h]) > 0")["result"]


def test_dashboard(stack: Stack, killed: list[dict[str, Any]]) -> None:
    """Prometheus understands all queries of the dashboard, and Ray has all of their metrics."""
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for query in queries:
        stack.query("query", query=query.replace("$instance", ".*"))
    used = set(re.findall(r"\bray_[a-z_]+(?=[ {)]|$)", " ".join(queries)))
    named = {name for name in used if "ray_train_run" not in name and "ray_train_worker_world" not in name}

    def missing() -> set[str]:
        seen = set(stack.query("label/__name__/values"))
        return {name for name in named if name not in seen and not GPU_METRICS.match(name)}

    end = time.monotonic() + PATIENCE_S
    while missing() and time.monotonic() < end:
        time.sleep(1)
    assert not missing()
    agent = next(Path(services_venv()).rglob("ray/dashboard/modules/reporter/reporter_agent.py")).read_text()
    for name in filter(GPU_METRICS.match, named):
        assert f'"{name.removeprefix("ray_")}": Gauge(' in agent, f"{name} is not a metric of Ray {RAY}"
