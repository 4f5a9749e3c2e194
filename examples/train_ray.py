#!/usr/bin/env python3
"""Trains the network of train_digits.py with Ray Train: one worker per GPU, checkpoints in an object store,
and all workers in one MLflow run.

Needs ray[train] and torch, and beside this file train_digits.py and digits.csv.gz. When a worker is lost, Ray
starts all workers again as soon as the cluster has room, and they resume from the last checkpoint. When the
driver is lost, submit the same command again: it resumes, too. The program reads these environment variables,
which the jobs of builder set:

* ``BUILDER_CHECKPOINT_DIR``: where to write checkpoints: an address such as ``s3://bucket/folder``, or a
  folder that all workers share. There is one checkpoint after each epoch; the newest two are retained.
* ``MLFLOW_TRACKING_URI``: where to log. ``MLFLOW_RUN_ID``: the run to log into; default: the run of this
  checkpoint folder, which is created if there is none.
* ``AWS_*``: address and keys of the object store.

The first worker writes one JSON object per line to standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import ray
    import ray.train
    import ray.train.torch
    import torch
    from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
except ImportError as e:
    sys.exit(f"train_ray.py needs ray[train] and torch: {e}")

import train_digits

#: The folder of Ray Train below the folder of the checkpoints. Ray finds the last checkpoint by this name.
NAME = "digits"
STATE = "state.pt"
#: The tag of an MLflow run that has the place of its checkpoints.
TAG = "builder.checkpoints"


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--epochs",
        type=int,
        default=20,
        help="total number of epochs, including those before a resume",
    )
    parser.add_argument("--workers", type=int, help="default: one per GPU of the cluster, else one")
    parser.add_argument(
        "--batch-size", type=int, default=96, help="images per step, in total over all workers"
    )
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--checkpoint-dir", default=os.environ.get("BUILDER_CHECKPOINT_DIR") or "checkpoints"
    )
    parser.add_argument(
        "--max-failures", type=int, default=10, help="how often to resume after lost workers"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0,
        metavar="S",
        help="seconds to wait after each step, for experiments",
    )
    return parser.parse_args()


# the driver -------------------------------------------------------------------------------------------------


def main() -> None:
    """Starts the workers and waits for them."""
    options = parse_options()
    ray.init(ignore_reinit_error=True)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    workers = options.workers or gpus or 1
    if options.batch_size % workers:
        sys.exit(f"a batch of {options.batch_size} images cannot be divided by {workers} workers")
    place = options.checkpoint_dir
    place = place if "://" in place else str(Path(place).resolve())
    run = open_run(place, {**settings(options), "world_size": workers}) if tracking() else ""
    trainer = ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config={**vars(options), "run": run},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus >= workers),
        run_config=RunConfig(
            name=NAME,
            storage_path=place,
            failure_config=FailureConfig(max_failures=options.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    try:
        result = trainer.fit()
    except BaseException:
        close_run(run, "FAILED")
        raise
    if run and result.checkpoint is not None:
        with result.checkpoint.as_directory() as folder:
            client().log_artifacts(run, folder, "checkpoint")
    close_run(run, "FINISHED")


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What must be the same in a checkpoint and in the training that resumes from it."""
    return {name: getattr(options, name) for name in ("batch_size", "learning_rate", "seed")}


def tracking() -> bool:
    return bool(os.environ.get("MLFLOW_TRACKING_URI"))


def client() -> Any:
    from mlflow import MlflowClient

    return MlflowClient()


def open_run(place: str, parameters: dict[str, Any]) -> str:
    """Returns the id of the MLflow run: that of the job, of the earlier driver, or a new one."""
    import mlflow

    tracker, run = client(), os.environ.get("MLFLOW_RUN_ID", "")
    if not run:
        experiment = mlflow.set_experiment(
            os.environ.get("MLFLOW_EXPERIMENT_NAME") or NAME
        ).experiment_id
        found = tracker.search_runs([experiment], f"tags.`{TAG}` = '{place}'", max_results=1)
        run = (found[0] if found else tracker.create_run(experiment, tags={TAG: place})).info.run_id
    tracker.update_run(run, "RUNNING")
    for name, value in parameters.items():
        with contextlib.suppress(
            mlflow.MlflowException
        ):  # a resumed training may have other workers
            tracker.log_param(run, name, value)
    return str(run)


def close_run(run: str, status: str) -> None:
    if run:
        client().set_terminated(run, status)


# the workers ------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    """This process: its rank, the number of workers, and its device."""

    rank: int
    world: int
    device: torch.device

    def log(self, event: str, **values: Any) -> None:
        if self.rank == 0:
            print(json.dumps({"event": event, **values}), flush=True)

    def mean(self, value: float) -> float:
        """The mean over all workers, which all must call."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        if self.world > 1:
            torch.distributed.all_reduce(tensor)
        return tensor.item() / self.world


@contextlib.contextmanager
def one_run(run: str, rank: int) -> Iterator[Any]:
    """Logs into the MLflow run of the driver, or nowhere. Yields a function like ``mlflow.log_metrics``.

    All workers log into one run. The node's id separates their system metrics: ``system/rank1/...``. Only the
    driver ends the run, because a run has one status.
    """
    if not run:
        yield lambda values, step: None
        return
    import mlflow

    mlflow.set_system_metrics_node_id(f"rank{rank}")
    mlflow.start_run(run_id=run)
    try:
        # In the background: a server that does not answer for a while must not stop the training.
        yield lambda values, step: mlflow.log_metrics(values, step=step, synchronous=False)
    finally:
        mlflow.end_run("RUNNING")


def train_worker(options: dict[str, Any]) -> None:
    """Trains in one worker until all epochs are done."""
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    worker = Worker(context.get_world_rank(), context.get_world_size(), device)
    torch.set_num_threads(1)  # the network is too small for more threads
    torch.manual_seed(options["seed"])
    images, labels = (part.to(device) for part in train_digits.read_digits())
    model = ray.train.torch.prepare_model(train_digits.make_network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["learning_rate"])
    start = resume(worker, model, optimizer)
    worker.log(
        "start", world_size=worker.world, device=str(device), host=socket.gethostname(), epoch=start
    )
    with one_run(options["run"], worker.rank) as log_metrics:
        for epoch in range(start, options["epochs"]):
            began = time.monotonic()
            loss = train_epoch(worker, model, optimizer, (images, labels), epoch, options)
            mean, seconds = worker.mean(loss), time.monotonic() - began
            accuracy = measure(model, images, labels)
            log_metrics(
                {f"rank{worker.rank}/loss": loss, f"rank{worker.rank}/seconds": seconds}, epoch + 1
            )
            if worker.rank == 0:
                log_metrics({"loss": mean, "accuracy": accuracy}, epoch + 1)
            worker.log(
                "epoch", epoch=epoch + 1, loss=mean, accuracy=accuracy, seconds=round(seconds, 3)
            )
            save(worker, model, optimizer, epoch + 1, {"loss": mean, "accuracy": accuracy})
    worker.log("done", epochs=options["epochs"], weights=train_digits.fingerprint(bare(model)))


def bare(model: Any) -> Any:
    """The network without the wrapper for several workers."""
    return getattr(model, "module", model)


def resume(worker: Worker, model: Any, optimizer: Any) -> int:
    """Loads the last checkpoint, if there is one. Returns the number of completed epochs."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, STATE), map_location=worker.device, weights_only=True)
    bare(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    worker.log("resume", checkpoint=checkpoint.path, epoch=state["epoch"])
    return int(state["epoch"])


def save(worker: Worker, model: Any, optimizer: Any, epoch: int, metrics: dict[str, float]) -> None:
    """Reports the end of an epoch. Ray uploads the folder of the first worker, and all wait for that."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if worker.rank == 0:
            state = {
                "model": bare(model).state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, Path(folder, STATE))
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report({"epoch": epoch, **metrics}, checkpoint=checkpoint)


def train_epoch(
    worker: Worker,
    model: Any,
    optimizer: Any,
    data: tuple[torch.Tensor, torch.Tensor],
    epoch: int,
    options: dict[str, Any],
) -> float:
    """Trains one epoch on this worker's part of each batch. Returns the mean loss there."""
    images, labels = data
    model.train()
    losses = []
    count = len(images) - train_digits.TEST_IMAGES
    for part in train_digits.batches(count, options["batch_size"], epoch, options["seed"], worker):
        indexes = part.to(worker.device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[indexes]), labels[indexes])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        time.sleep(options["pause"])
    return sum(losses) / len(losses)


@torch.no_grad()
def measure(model: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Returns the fraction of test images that are recognized."""
    model.eval()
    test = slice(len(images) - train_digits.TEST_IMAGES, None)
    return (bare(model)(images[test]).argmax(1) == labels[test]).float().mean().item()


if __name__ == "__main__":
    main()
