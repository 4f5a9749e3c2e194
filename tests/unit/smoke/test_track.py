"""Figures and reports for MLflow and TensorBoard."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from builder.config.recipe import load_recipe
from builder.smoke.reports import store_report
from builder.smoke.run import complete
from builder.smoke.track import TrackError, check, metrics, to_mlflow, to_tensorboard
from tests.support.reports import A100_40, a100, ranked, report
from tests.support.smoke_project import LOCK, NEW, write_recipe


def _tracker(name: str) -> Any:
    """A package of the dev extra; in CI it must be installed."""
    return importlib.import_module(name) if os.environ.get("CI") else pytest.importorskip(name)


def test_metrics() -> None:
    devices = [{**A100_40, "rank": i} for i in range(2)]
    made = report([ranked("matmul.bf16", (248e3, 240e3))], devices=devices, ranks=2)
    made["grade"] = {
        "findings": [
            {"id": "matmul.bf16", "device": "rank 1 on n017 (cuda:1)", "basis": "achieved", "fraction": 0.97},
            {"id": "matmul.bf16", "device": "rank 1 on n017 (cuda:1)", "basis": "site", "fraction": 0.99},
        ]
    }
    assert metrics(made) == {
        "matmul.bf16.gflop_per_s.rank0": 248e3,
        "matmul.bf16.gflop_per_s.rank1": 240e3,
        "matmul.bf16.fraction.rank1": 0.97,
        "matmul.bf16.site_fraction.rank1": 0.99,
    }


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # since 3.x it wants to be asked
    mlflow = _tracker("mlflow")
    made = complete(a100(), load_recipe("gpu", write_recipe(tmp_path)), NEW, "docker", lock=LOCK)
    path, uri = store_report(made, tmp_path / "kept"), f"file://{tmp_path}/runs"
    check(uri, None)
    number = to_mlflow(uri, made, path)
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(number)
    assert run.data.metrics["matmul.bf16.gflop_per_s"] == pytest.approx(248e3, rel=0.02)
    assert run.data.metrics["matmul.bf16.fraction"] == pytest.approx(1.0, abs=0.03)
    assert (run.data.tags["verdict"], run.data.tags["digest"], run.info.status) == ("pass", NEW, "FINISHED")
    assert [a.path for a in client.list_artifacts(number)] == [path.name]
    assert (
        to_mlflow(uri, {**made, "verdict": "fail"}, None) != number
    )  # a run of its own in the same experiment
    assert len(client.search_runs([run.info.experiment_id])) == 2


def test_mlflow_not_reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line that names the server."""
    _tracker("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackError, match="MLflow at http://127.0.0.1:9/: ") as e:
        to_mlflow("http://127.0.0.1:9/", a100(), None)
    assert "\n" not in e.value.message and "the report itself is stored" in e.value.hint


def test_tensorboard(tmp_path: Path) -> None:
    _tracker("tensorboardX")
    check(None, tmp_path)
    place = to_tensorboard(
        tmp_path / "tb", complete(a100(), load_recipe("gpu", write_recipe(tmp_path)), NEW, "docker")
    )
    (events,) = place.iterdir()
    data = events.read_bytes()
    assert b"smoke/matmul.bf16.gflop_per_s" in data and b"smoke/matmul.bf16.fraction" in data
    assert place.name == "gpu-20261121T080000Z"
