#!/usr/bin/env python3
"""Trains a small network to recognize handwritten digits, on one CPU or on many GPUs. Resumes after
interruptions.

Needs only torch. The program reads these environment variables, which the scripts of ``builder job`` set:

* ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``: one process per GPU (torchrun
sets them,
  too). Without them there is a single process.
* ``BUILDER_CHECKPOINT_DIR``: where to write checkpoints (``*.pt``): a folder that all nodes share, or an
address such
  as ``s3://bucket/folder``. There is one checkpoint after each epoch; the newest two are retained.
* ``BUILDER_RESUME``: the checkpoint to resume from; default: the newest one in the folder.
* ``BUILDER_DATA``: a folder that contains ``digits.csv.gz``; default: the folder of this file.
* ``MLFLOW_TRACKING_URI``: where to log metrics, if mlflow is installed.

Rank 0 writes one JSON object per line to standard output. Exit codes: 0 all epochs are done; 143 stopped by
SIGTERM or SIGUSR1 after writing a checkpoint; 1 an error. The same seed and number of ranks give the same
weights, on CPUs bit for bit, regardless of interruptions.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
except ImportError as e:
    sys.exit(f"train_digits.py needs torch: {e}")

TEST_IMAGES = 360  # a fifth of the images, as in scikit-learn's example
RETAINED_CHECKPOINTS = 2
STOPPED = 128 + signal.SIGTERM
STATE_KEYS = {"model", "optimizer", "epoch", "step", "loss", "settings"}


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--epochs",
        type=int,
        default=20,
        help="total number of epochs, including those before a resume",
    )
    parser.add_argument(
        "--batch-size", type=int, default=96, help="images per step, in total over all ranks"
    )
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--checkpoint-dir", default=os.environ.get("BUILDER_CHECKPOINT_DIR") or "checkpoints"
    )
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write Accuracy/test and Loss/train to this folder",
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0,
        metavar="S",
        help="seconds to wait after each step, for experiments",
    )
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return options


def fail(message: str, hint: str) -> NoReturn:
    """Ends the program with an error message."""
    print(f"train_digits.py: {message}\n  hint: {hint}", file=sys.stderr, flush=True)
    sys.exit(1)


def integer_variable(name: str, default: int) -> int:
    """Returns the value of an environment variable."""
    text = os.environ.get(name, "")
    if text and not text.isdigit():
        fail(f"{name} is {text!r}, not a number", "start this program with torchrun or builder job")
    return int(text or default)


# ranks ------------------------------------------------------------------------------------------------------


class Ranks:
    """The processes that train together, and the device of this process."""

    def __init__(self) -> None:
        self.rank = integer_variable("RANK", 0)
        self.world = integer_variable("WORLD_SIZE", 1)
        self.cuda = torch.cuda.is_available()  # also true for ROCm
        self.device = torch.device("cpu")
        if self.cuda:
            # If the launcher gives each process one visible GPU, this is GPU 0.
            local_rank = integer_variable("LOCAL_RANK", 0)
            self.device = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.backend = ""
        if self.world > 1:
            self._check_variables()
            self.backend = "nccl" if self.cuda else "gloo"
            dist.init_process_group(self.backend, timeout=datetime.timedelta(minutes=5))

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Returns the sums over all ranks. All ranks must call this."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.backend:
            dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def from_first(self, value: Any) -> Any:
        """Returns the value that rank 0 passed. All ranks must call this."""
        box = [value]
        if self.backend:
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def leave(self) -> None:
        """Waits for all ranks before leaving: some launchers end all ranks when one ends."""
        if self.backend:
            dist.barrier()
            dist.destroy_process_group()

    def _check_variables(self) -> None:
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(name):
                fail(
                    f"WORLD_SIZE is {self.world}, but {name} is not set",
                    "start this program with torchrun or builder job",
                )


# data -------------------------------------------------------------------------------------------------------


def read_digits() -> tuple[Tensor, Tensor]:
    """Returns 1797 images of 8 x 8 grey values from 0 to 1, and the digits that they show."""
    path = digits_file()
    try:
        with gzip.open(path, "rt") as file:
            rows = [[float(cell) for cell in line.split(",")] for line in file]
        table = torch.tensor(rows)
        return table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()
    except (OSError, EOFError, ValueError, IndexError, RuntimeError) as e:
        fail(
            f"{path} cannot be read: {e}",
            "copy it from scikit-learn: sklearn/datasets/data/digits.csv.gz",
        )


def digits_file() -> Path:
    """Returns the path of the data."""
    folder = os.environ.get("BUILDER_DATA", "")
    if not folder:
        return Path(__file__).resolve().with_name("digits.csv.gz")
    for path in sorted(Path(folder).rglob("digits.csv.gz")):
        return path
    return fail(
        f"BUILDER_DATA is {folder}, which contains no digits.csv.gz", "add it to the tar of --data"
    )


def batches(count: int, size: int, epoch: int, seed: int, ranks: Ranks) -> Iterator[Tensor]:
    """Yields the indexes of this rank's part of each batch. Their order depends only on seed and epoch."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    order = torch.randperm(count, generator=generator)
    for step in range(count // size):
        batch = order[step * size : (step + 1) * size]
        yield batch[ranks.rank :: ranks.world]


# checkpoints ------------------------------------------------------------------------------------------------


class Folder:
    """Checkpoints in a folder. Files appear there only when they are complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for unfinished in self.folder.glob(
            "digits-*.pt.part"
        ):  # the program was killed while writing
            unfinished.unlink()

    def newest_first(self) -> list[str]:
        paths = list(self.folder.glob("*.pt"))
        paths.sort(key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
        return [str(path) for path in paths]

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, name: str, data: bytes) -> str:
        """Writes to a temporary file, which is then renamed."""
        path = self.folder / name
        part = path.with_suffix(".pt.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return str(path)

    def remove(self, path: str) -> None:
        Path(path).unlink()


class ObjectStore:
    """Checkpoints at an address such as ``s3://bucket/folder``. Needs fsspec, which torch installs, and s3fs
    for S3."""

    def __init__(self, address: str) -> None:
        import fsspec

        self.fs, self.root = fsspec.core.url_to_fs(address)

    def prepare(self) -> None:
        self.fs.makedirs(self.root, exist_ok=True)

    def newest_first(self) -> list[str]:
        self.fs.invalidate_cache()
        names = [name for name in self.fs.ls(self.root, detail=False) if name.endswith(".pt")]
        # Object stores record seconds: names decide between objects of the same second.
        return sorted(names, key=lambda name: (self.fs.modified(name), name), reverse=True)

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(path))

    def write(self, name: str, data: bytes) -> str:
        path = f"{self.root.rstrip('/')}/{name}"
        self.fs.pipe_file(path, data)  # an object is visible only when it is complete
        return path

    def remove(self, path: str) -> None:
        self.fs.rm_file(path)


class Checkpoints:
    """The checkpoints of a training. Only rank 0 writes and removes them."""

    def __init__(self, place: str, ranks: Ranks, log: Log) -> None:
        self.ranks, self.log = ranks, log
        try:
            self.files = ObjectStore(place) if "://" in place else Folder(Path(place))
            if ranks.is_first:
                self.files.prepare()
        except Exception as e:  # object stores raise their own errors
            reason = e.strerror if isinstance(e, OSError) and e.strerror else e
            fail(
                f"{place} cannot be used for checkpoints: {reason}",
                "choose another --checkpoint-dir",
            )

    def load(self) -> dict[str, Any] | None:
        """Returns the checkpoint to resume from, chosen by rank 0: ``BUILDER_RESUME``, or the newest readable
        one."""
        path = self.ranks.from_first(self._choose() if self.ranks.is_first else None)
        if path is None:
            return None
        state = self.read(path)
        if state is None:
            fail(
                f"rank {self.ranks.rank} cannot read {path}, but rank 0 can",
                "use a folder that all nodes share",
            )
        self.log("resume", checkpoint=path, epoch=state["epoch"], step=state["step"])
        return state

    def read(self, path: str, warn: bool = False) -> dict[str, Any] | None:
        """Returns the content of a checkpoint, or None if it is not valid."""
        try:
            state = torch.load(
                io.BytesIO(self.files.read(path)), map_location="cpu", weights_only=True
            )
            if set(state) >= STATE_KEYS:
                return dict(state)
            reason = "it is not a checkpoint of this program"
        except Exception as e:  # torch raises any error of unpickling
            reason = first_line(e)
        if warn:
            self.log("warning", message=f"ignoring {path}: {reason}")
        return None

    def write(self, state: dict[str, Any]) -> None:
        """Writes a checkpoint and removes old ones."""
        if not self.ranks.is_first:
            return
        name = f"digits-{state['epoch']:04d}-{state['step']:04d}.pt"
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        try:
            path = self.files.write(name, data)
            others = [other for other in self.files.newest_first() if other != path]
            own = [other for other in others if other.rpartition("/")[2].startswith("digits-")]
            for old in own[RETAINED_CHECKPOINTS - 1 :]:
                self.files.remove(old)
        except Exception as e:  # disk full, quota exceeded, object store not available
            fail(
                f"cannot write checkpoint {name}: {e}",
                "free some space; older checkpoints are unchanged",
            )
        self.log("checkpoint", checkpoint=path, bytes=len(data))

    def _choose(self) -> str | None:
        named = os.environ.get("BUILDER_RESUME", "")
        paths = [named] if named else []
        paths += [path for path in self.files.newest_first() if path != named]
        for path in paths:
            if self.read(path, warn=True) is not None:
                return path
        return None


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or its type."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


# log --------------------------------------------------------------------------------------------------------


class Log:
    """Writes JSON lines to standard output, and metrics to MLflow and TensorBoard if they are available."""

    def __init__(self, ranks: Ranks, tensorboard: Path | None) -> None:
        self.is_first = ranks.is_first
        self.folder = tensorboard
        self.mlflow: Any = None
        self.board: Any = None

    def __call__(self, event: str, **values: Any) -> None:
        if self.is_first:
            print(json.dumps({"event": event, **values}), flush=True)

    def open(self, run: str, settings: dict[str, Any]) -> str:
        """Opens TensorBoard and MLflow.

        Args:
            run: id of the MLflow run to continue; empty: a new run.
            settings: parameters of the run.

        Returns:
            The id of the MLflow run, or ``run`` without MLflow.
        """
        if self.is_first and self.folder:
            self._open_tensorboard(self.folder)
        if self.is_first and os.environ.get("MLFLOW_TRACKING_URI"):
            return self._open_mlflow(run, settings)
        return run

    def epoch(self, epoch: int, loss: float, accuracy: float, seconds: float, images: int) -> None:
        """Logs the result of an epoch."""
        speed = round(images / max(seconds, 1e-9), 1)
        self(
            "epoch",
            epoch=epoch,
            loss=loss,
            accuracy=accuracy,
            seconds=round(seconds, 3),
            images_per_s=speed,
        )
        if self.board is not None:
            self.board.add_scalar("Loss/train", loss, epoch)
            self.board.add_scalar("Accuracy/test", accuracy, epoch)
        if self.mlflow is not None:
            try:
                self.mlflow.log_metrics(
                    {"loss": loss, "accuracy": accuracy, "seconds": seconds}, step=epoch
                )
            except Exception as e:
                self("warning", message=f"logging to MLflow stopped: {type(e).__name__}")
                self.mlflow = None

    def close(self, status: str) -> None:
        """Closes TensorBoard, and the MLflow run with a status."""
        if self.board is not None:
            self.board.close()
        if self.mlflow is not None:
            try:
                self.mlflow.end_run(status)
            except Exception as e:
                self(
                    "warning",
                    message=f"MLflow did not receive the end of the run: {type(e).__name__}",
                )

    def _open_tensorboard(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(folder)
        except ImportError as e:
            self("warning", message=f"--tensorboard is ignored: {e}")

    def _open_mlflow(self, run: str, settings: dict[str, Any]) -> str:
        # By default, mlflow waits many minutes for a server that does not answer.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        try:
            import mlflow

            run = mlflow.start_run(run_id=run or None).info.run_id
            mlflow.log_params(settings)
            self.mlflow = mlflow
            self("mlflow", run=run)
        except Exception as e:  # a failure of the log must not stop the training
            reason = f"{type(e).__name__}: {first_line(e) if str(e) else ''}"
            self("warning", message=f"not logging to MLflow: {reason}")
        return run


# training ---------------------------------------------------------------------------------------------------


def make_network() -> nn.Module:
    """Returns the untrained network."""
    convolutions = (
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    )
    return nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def fingerprint(model: nn.Module) -> str:
    """Returns the sha256 of all weights, to compare trainings."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(bytes(value.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


@dataclass
class Progress:
    """How far the training is."""

    epoch: int = 0
    """Completed epochs."""
    step: int = 0
    """Completed steps of the current epoch."""
    loss: float = 0.0
    """Sum of the losses of these steps."""
    run: str = ""
    """Id of the MLflow run."""


class Training:
    """A training that can be stopped after each step, and resumed."""

    def __init__(self, options: argparse.Namespace, stop_signals: list[str]) -> None:
        self.options = options
        self.stop_signals = stop_signals
        self.ranks = Ranks()
        self._check_batch_size()
        self.log = Log(self.ranks, options.tensorboard)
        self._log_start()
        self._load_data()

        self.model = make_network().to(self.ranks.device)
        self.checkpoints = Checkpoints(options.checkpoint_dir, self.ranks, self.log)
        self.settings = {
            "batch_size": options.batch_size,
            "learning_rate": options.learning_rate,
            "seed": options.seed,
        }
        self.progress = self._resume()
        run_settings = {**self.settings, "world_size": self.ranks.world, "torch": torch.__version__}
        self.progress.run = self.log.open(self.progress.run, run_settings)
        self.trainer = self.model
        if self.ranks.backend:
            devices = [self.ranks.device] if self.ranks.cuda else None
            self.trainer = nn.parallel.DistributedDataParallel(self.model, device_ids=devices)

    def run(self) -> int:
        """Trains until all epochs are done, or until a signal. Returns the exit code."""
        while self.progress.epoch < self.options.epochs:
            if not self._train_epoch():
                stopped_by = self.stop_signals[0] if self.stop_signals else "signal of another rank"
                self.log(
                    "stopped", signal=stopped_by, epoch=self.progress.epoch, step=self.progress.step
                )
                self.log.close("KILLED")
                self.ranks.leave()
                return STOPPED
        epochs = self.progress.epoch
        self.log(
            "done",
            message=f"all {epochs} epochs are done",
            epochs=epochs,
            accuracy=self._accuracy(),
            weights=fingerprint(self.model),
        )
        self.log.close("FINISHED")
        self.ranks.leave()
        return 0

    def _check_batch_size(self) -> None:
        size, world = self.options.batch_size, self.ranks.world
        if size % world:
            fail(
                f"a batch of {size} images cannot be divided by {world} ranks",
                f"--batch-size {world * -(-size // world)}",
            )

    def _log_start(self) -> None:
        self.log(
            "start",
            torch=torch.__version__,
            device=str(self.ranks.device),
            backend=self.ranks.backend,
            world_size=self.ranks.world,
            host=os.uname().nodename,
            epochs=self.options.epochs,
        )

    def _load_data(self) -> None:
        images, labels = read_digits()
        self.images, self.labels = images.to(self.ranks.device), labels.to(self.ranks.device)
        self.train_count = len(self.images) - TEST_IMAGES
        if self.train_count < self.options.batch_size:
            fail(
                f"--batch-size {self.options.batch_size} is more than the {self.train_count} training images",
                "use a smaller batch size",
            )

    def _resume(self) -> Progress:
        state = self.checkpoints.load()
        if state is not None:
            if state["settings"] != self.settings:
                fail(
                    f"the checkpoint has other settings: {state['settings']}, not {self.settings}",
                    "use the same settings, or another --checkpoint-dir",
                )
            self.model.load_state_dict(state["model"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.options.learning_rate)
        if state is None:
            return Progress()
        self.optimizer.load_state_dict(state["optimizer"])
        return Progress(state["epoch"], state["step"], state["loss"], state["run"])

    def _train_epoch(self) -> bool:
        """Trains the rest of the current epoch. Returns False if a signal stopped the training."""
        started, first_step = time.monotonic(), self.progress.step
        self.model.train()
        size = self.options.batch_size
        parts = batches(self.train_count, size, self.progress.epoch, self.options.seed, self.ranks)
        for number, indexes in enumerate(parts):
            if number < first_step:
                continue  # done before the interruption
            if self._train_step(indexes):
                self._save()
                return False
        accuracy = self._accuracy()
        steps = self.progress.step
        mean_loss = self.progress.loss / steps
        self.progress = Progress(self.progress.epoch + 1, run=self.progress.run)
        seconds = time.monotonic() - started
        self.log.epoch(
            self.progress.epoch, mean_loss, accuracy, seconds, (steps - first_step) * size
        )
        self._save()
        return True

    def _train_step(self, indexes: Tensor) -> bool:
        """Trains one batch. Returns whether any rank received a signal."""
        indexes = indexes.to(self.ranks.device)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.trainer(self.images[indexes]), self.labels[indexes])
        loss.backward()
        self.optimizer.step()
        time.sleep(self.options.pause)
        # All ranks decide together: a rank that stops alone would leave the others waiting.
        mean, stopped = self.ranks.sum(
            loss.item() / self.ranks.world, float(bool(self.stop_signals))
        )
        self.progress.loss += mean
        self.progress.step += 1
        return stopped > 0

    def _save(self) -> None:
        self.checkpoints.write(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": self.progress.epoch,
                "step": self.progress.step,
                "loss": self.progress.loss,
                "settings": self.settings,
                "run": self.progress.run,
            }
        )

    @torch.no_grad()
    def _accuracy(self) -> float:
        """Returns the fraction of test images that are recognized; each rank evaluates its part."""
        self.model.eval()
        images, labels = self.images[self.train_count :], self.labels[self.train_count :]
        own = slice(self.ranks.rank, None, self.ranks.world)
        correct = (self.model(images[own]).argmax(1) == labels[own]).sum().item()
        return self.ranks.sum(correct)[0] / len(images)


def main() -> int:
    """Runs the training and returns the exit code."""
    options = parse_options()
    stop_signals: list[str] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(
            number, lambda signum, frame: stop_signals.append(signal.Signals(signum).name)
        )
    torch.set_num_threads(1)  # the network is too small for more threads
    torch.manual_seed(options.seed)
    torch.backends.cudnn.deterministic = True
    return Training(options, stop_signals).run()


if __name__ == "__main__":
    code = main()
    if integer_variable("WORLD_SIZE", 1) > 1:
        # In torch 2.13, gloo's threads outlive the process group and can abort Python while it exits.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
