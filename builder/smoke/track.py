"""Handing a report's figures to experiment trackers. Their packages are not builder's: they are used where they are installed."""

from __future__ import annotations

import datetime
import importlib.util
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from builder.errors import BuilderError, UsageError
from builder.redact import redact
from builder.smoke.grade import Report, values_of


class TrackError(BuilderError):
    """A tracker that cannot be reached or does not take the figures."""


def check(mlflow: str | None, tensorboard: Path | None) -> None:
    """Refuses before anything is run what could not be logged in the end.

    Raises:
        UsageError: the package is missing, or an address holds a password.
    """
    if mlflow is not None:
        if importlib.util.find_spec("mlflow") is None:
            raise UsageError(
                "--mlflow: the package mlflow is not installed beside builder", "pip install mlflow-skinny"
            )
        if "@" in urlsplit(mlflow).netloc:
            raise UsageError(
                "--mlflow: the address holds a user or password",
                "give it without; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
            )
    if tensorboard is not None and _writer() is None:
        raise UsageError(
            "--tensorboard: neither tensorboard with torch, nor tensorboardX, is installed beside builder",
            "pip install tensorboardX",
        )


def figures(report: Report) -> dict[str, float]:
    """Each measurement's figure by ``id.unit`` (of several ranks: ``id.unit.rankN``), each graded fraction by ``id.fraction``."""
    out: dict[str, float] = {}
    for measurement in report["measurements"]:
        if measurement["status"] in ("pass", "warn"):
            for value in values_of(measurement):
                rank = f".rank{value.rank}" if value.rank is not None else ""
                out[f"{value.id}.{value.unit}{rank}"] = value.median
    for finding in (report.get("grade") or {}).get("findings", []):
        fraction, device = finding.get("fraction"), str(finding.get("device", ""))
        if isinstance(fraction, int | float) and finding.get("basis") in (
            "achieved",
            "acceptance",
            "peak",
            "roofline",
        ):
            of_rank = re.match(r"rank (\d+)", device)
            out[f"{finding['id']}.fraction{f'.rank{of_rank[1]}' if of_rank else ''}"] = float(fraction)
    return out


def to_mlflow(uri: str, report: Report, path: Path | None) -> str:
    """Logs a report as a run of the experiment ``builder smoke TARGET``; gives the run's id.

    Args:
        uri: the tracking server or store.
        path: the report's file, kept as an artifact.

    Raises:
        TrackError: the server says no, or nothing.
    """
    mlflow = importlib.import_module("mlflow")
    about = report.get("image", {})
    name = f"builder smoke {about.get('target', 'image')}"
    tags = {
        "verdict": report["verdict"],
        "digest": about.get("digest", ""),
        "runner": about.get("runner", ""),
    }
    try:
        client: Any = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        run = client.create_run(number, run_name=str(about.get("tag") or report["started"]), tags=tags)
        for key, value in figures(report).items():
            client.log_metric(run.info.run_id, key, value)
        if path is not None:
            client.log_artifact(run.info.run_id, str(path))
        client.set_terminated(
            run.info.run_id, "FINISHED" if report["verdict"] in ("pass", "warn") else "FAILED"
        )
    except Exception as e:  # of the tracker's many libraries
        said = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise TrackError(
            f"MLflow at {redact(uri)}: {said[:300]}", "check the address; the report itself is kept"
        ) from None
    return str(run.info.run_id)


def _writer() -> Any:
    """A SummaryWriter class, or None."""
    if importlib.util.find_spec("tensorboardX") is not None:
        return importlib.import_module("tensorboardX").SummaryWriter
    if importlib.util.find_spec("tensorboard") is not None and importlib.util.find_spec("torch") is not None:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    return None


def to_tensorboard(folder: Path, report: Report) -> Path:
    """Writes a report's figures as scalars, each run into a folder of its own; gives that folder.

    The step is the day (``26326`` is day 326 of 2026), so that runs line up in time.

    Raises:
        TrackError: the folder cannot be written.
    """
    about = report.get("image", {})
    started = str(report["started"])
    place = folder / f"{about.get('target', 'image')}-{re.sub(r'[-:]', '', started)}"
    day = int(datetime.datetime.fromisoformat(started).strftime("%y%j"))
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
        writer = _writer()(str(place))
        for key, value in figures(report).items():
            writer.add_scalar(f"smoke/{key}", value, day)
        writer.close()
    except OSError as e:
        raise TrackError(
            f"--tensorboard {folder}: cannot be written: {e.strerror}", "name a folder of your own"
        ) from None
    return place
