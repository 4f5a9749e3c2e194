"""Sends the values of a report to an experiment tracker, MLflow or TensorBoard.

The reports are JSON, so a site can send them anywhere with a few lines of Python. These two trackers are part
of builder for what such a script gets wrong: metric names that stay the same over months and for each rank,
credentials that do not reach a log, and an early end if a package is missing, before a test runs for minutes.
builder does not depend on the trackers' packages; it uses them if they are installed.
"""

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
from builder.smoke.finding import PUBLISHED
from builder.smoke.values import Report, findings_of, usable_measurements, values_of

#: Bases of the fractions that are logged.
_GRADED_BASES = (*PUBLISHED, "roofline", "site")


class TrackError(BuilderError):
    """A tracker cannot be reached, or rejects the values."""


def check(mlflow: str | None, tensorboard: Path | None) -> None:
    """Checks the options for trackers before a test runs.

    Raises:
        UsageError: a package is not installed, or an address contains a password.
    """
    if mlflow is not None:
        if importlib.util.find_spec("mlflow") is None:
            message = "--mlflow: the package mlflow is not installed with builder"
            raise UsageError(message, "pip install mlflow-skinny")
        if "@" in urlsplit(mlflow).netloc:
            raise UsageError(
                "--mlflow: the address contains a user name or password",
                "remove it, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
            )
    if tensorboard is not None and _summary_writer() is None:
        raise UsageError(
            "--tensorboard: neither tensorboardX, nor tensorboard with torch, is installed with builder",
            "pip install tensorboardX",
        )


def metrics(report: Report) -> dict[str, float]:
    """The values of a report as metrics.

    Each value is ``ID.UNIT`` (``ID.UNIT.rankN`` if there are several ranks), each graded fraction
    ``ID.fraction``, and its fraction of the site's baseline ``ID.site_fraction``.
    """
    out: dict[str, float] = {}
    for measurement in usable_measurements(report):
        for value in values_of(measurement):
            suffix = f".rank{value.rank}" if value.rank is not None else ""
            out[f"{value.id}.{value.unit}{suffix}"] = value.median
    for finding in findings_of(report):
        fraction = finding.get("fraction")
        basis = finding.get("basis")
        if isinstance(fraction, int | float) and basis in _GRADED_BASES:
            rank = re.match(r"rank (\d+)", str(finding.get("device", "")))
            suffix = f".rank{rank[1]}" if rank else ""
            name = "site_fraction" if basis == "site" else "fraction"
            out[f"{finding['id']}.{name}{suffix}"] = float(fraction)
    return out


def to_mlflow(uri: str, report: Report, path: Path | None) -> str:
    """Logs a report as a run of the experiment ``builder smoke TARGET`` and returns the id of the run.

    Args:
        uri: the tracking server or store.
        report: the report.
        path: the report's file, logged as an artifact.

    Raises:
        TrackError: the server cannot be reached, or rejects the run.
    """
    mlflow = importlib.import_module("mlflow")
    image = report.get("image", {})
    name = f"builder smoke {image.get('target', 'image')}"
    tags = {
        "verdict": report["verdict"],
        "digest": image.get("digest", ""),
        "runner": image.get("runner", ""),
    }
    status = "FINISHED" if report["verdict"] in ("pass", "warn") else "FAILED"
    try:
        client: Any = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        run = client.create_run(number, run_name=str(image.get("tag") or report["started"]), tags=tags)
        for key, value in metrics(report).items():
            client.log_metric(run.info.run_id, key, value)
        if path is not None:
            client.log_artifact(run.info.run_id, str(path))
        client.set_terminated(run.info.run_id, status)
    except Exception as e:  # MLflow raises the exceptions of many libraries
        reason = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        message = f"MLflow at {redact(uri)}: {reason[:300]}"
        raise TrackError(message, "check the address; the report itself is stored") from None
    return str(run.info.run_id)


def _summary_writer() -> Any:
    """A SummaryWriter class; None if no package with one is installed."""
    if importlib.util.find_spec("tensorboardX") is not None:
        return importlib.import_module("tensorboardX").SummaryWriter
    if importlib.util.find_spec("tensorboard") is not None and importlib.util.find_spec("torch") is not None:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    return None


def to_tensorboard(folder: Path, report: Report) -> Path:
    """Writes the values of a report as scalars to a new folder per run, and returns that folder.

    The step is the day: 26326 is day 326 of 2026. So the runs are in order of time.

    Raises:
        TrackError: the folder cannot be written to.
    """
    started = str(report["started"])
    target = report.get("image", {}).get("target", "image")
    run_folder = folder / f"{target}-{re.sub(r'[-:]', '', started)}"
    day = int(datetime.datetime.fromisoformat(started).strftime("%y%j"))
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=run_folder):
            pass  # tensorboardX writes in a thread, which cannot report this error
        writer = _summary_writer()(str(run_folder))
        for key, value in metrics(report).items():
            writer.add_scalar(f"smoke/{key}", value, day)
        writer.close()
    except OSError as e:
        message = f"--tensorboard {folder}: cannot be written to: {e.strerror}"
        raise TrackError(message, "name a folder that you may write to") from None
    return run_folder
