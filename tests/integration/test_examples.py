"""examples/train_digits.py with a real torch: interruptions, resuming, invalid input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import CLONE

EXAMPLES = CLONE / "examples"
#: Of an epoch: 1437 images in batches of 96.
STEPS = 14
#: Imports torch once, which takes seconds, and runs each training in a fork of itself. A training sends
#: itself the signal ``kill`` in the pause after a step: a busy machine does not move it to another step.
SERVER = """
import json, os, runpy, signal, sys, time
import torch, torch.distributed, torch._dynamo  # the last one is what optimizers import
def kill_after(steps, name):
    def pause(seconds):
        nonlocal steps
        steps -= 1
        if not steps:
            os.kill(os.getpid(), signal.Signals[name])
    time.sleep = pause
for line in sys.stdin:
    case = json.loads(line)
    pid = os.fork()
    if not pid:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(case[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.environ.update(case["env"])
        if case["kill"]:
            kill_after(*case["kill"])
        sys.argv = [case["script"], *case["arguments"]]
        runpy.run_path(case["script"], run_name="__main__")
        sys.exit("main() came back")
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass
class Trainer:
    """A Python process that has imported torch and waits for requests."""

    server: subprocess.Popen[str]

    def ask(self, case: dict[str, Any]) -> int:
        """Runs a training; returns its exit code."""
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(case) + "\n")
        self.server.stdin.flush()
        line = self.server.stdout.readline()
        assert line, "the Python process has exited"
        return int(line)


@dataclass
class Training:
    """The example, with a folder for its files."""

    trainer: Trainer
    folder: Path

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.folder / "ck").glob("*.pt"))

    def run(
        self,
        *arguments: str,
        code: int = 0,
        kill: tuple[int, str] | None = None,
        **variables: str | Path,
    ) -> Result:
        """Runs the example, which must exit with this code.

        Args:
            arguments: of its command line.
            code: its exit code.
            kill: the number of steps after which a signal arrives, and the signal's name.
            variables: of its environment.
        """
        script, out, err = EXAMPLES / "train_digits.py", self.folder / "out", self.folder / "err"
        env = {"BUILDER_CHECKPOINT_DIR": self.folder / "ck", **variables}
        case = {"script": str(script), "arguments": arguments, "out": str(out), "err": str(err), "kill": kill}
        ended = self.trainer.ask({**case, "env": {k: str(v) for k, v in env.items()}})
        printed, error = out.read_text(), err.read_text()
        assert ended == code, f"{ended}: {printed}{error}"
        return Result([json.loads(line) for line in printed.splitlines()], error)


@dataclass
class Result:
    """Output of a training."""

    events: list[dict[str, Any]]
    error: str

    def all_of(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event]

    def only(self, event: str) -> dict[str, Any]:
        (found,) = self.all_of(event)
        return found


@pytest.fixture(scope="module")
def trainer(torch: Path) -> Iterator[Trainer]:
    env = {**os.environ, "PYTHONPATH": str(torch)}
    words = [sys.executable, "-c", SERVER]
    server = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Trainer(server)
    finally:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.close()
        server.wait(120)
        server.stdout.close()


@pytest.fixture
def training(trainer: Trainer, tmp_path: Path) -> Training:
    return Training(trainer, tmp_path)


@pytest.fixture(scope="module")
def uninterrupted(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Six epochs without an interruption."""
    return Training(trainer, tmp_path_factory.mktemp("whole")).run("--epochs", "6")


def test_training(uninterrupted: Result) -> None:
    """The loss decreases, and the accuracy is far above guessing."""
    assert [e["epoch"] for e in uninterrupted.all_of("epoch")] == [1, 2, 3, 4, 5, 6]
    losses = [e["loss"] for e in uninterrupted.all_of("epoch")]
    assert losses[-1] < losses[0] / 5
    assert uninterrupted.only("done")["accuracy"] > 0.85  # guessing has 0.1


def test_resume_after_sigterm(training: Training, uninterrupted: Result) -> None:
    """A training that SIGTERM stopped resumes and ends with the same weights, bit for bit."""
    stopped = training.run("--epochs", "6", code=143, kill=(2 * STEPS + 3, "SIGTERM")).only("stopped")
    assert (stopped["signal"], stopped["epoch"], stopped["step"]) == ("SIGTERM", 2, 3)
    resumed = training.run("--epochs", "6")
    assert (resumed.only("resume")["epoch"], resumed.only("resume")["step"]) == (2, stopped["step"])
    assert resumed.only("done") == uninterrupted.only("done")  # the weights too, bit for bit
    assert resumed.all_of("epoch")[0]["loss"] == pytest.approx(
        uninterrupted.all_of("epoch")[2]["loss"], rel=1e-12
    )
    again = training.run("--epochs", "6")  # nothing is left to do
    assert again.only("done") == uninterrupted.only("done") and not again.all_of("epoch")
    more = training.run("--epochs", "7")
    assert [e["epoch"] for e in more.all_of("epoch")] == [7]


def test_resume_after_sigkill(training: Training, uninterrupted: Result) -> None:
    """A killed training resumes from the last epoch, and removes an unfinished checkpoint."""
    training.run("--epochs", "6", code=-signal.SIGKILL, kill=(3 * STEPS + 3, "SIGKILL"))
    shutil.copy(
        training.checkpoints[0], training.folder / "ck" / "digits-0009-0000.pt.part"
    )  # killed while it wrote
    resumed = training.run("--epochs", "6")
    assert resumed.only("resume")["epoch"] == 3
    assert resumed.only("done") == uninterrupted.only("done")
    assert sorted(p.name for p in (training.folder / "ck").iterdir()) == [
        "digits-0005-0000.pt",
        "digits-0006-0000.pt",
    ]


def test_invalid_checkpoints(training: Training, uninterrupted: Result) -> None:
    """Invalid checkpoints are ignored with a warning."""
    training.run("--epochs", "3")
    older, newest = training.checkpoints
    data = newest.read_bytes()
    newest.write_bytes(data[: len(data) // 2])
    (training.folder / "ck" / "other.pt").write_bytes(b"")
    os.utime(training.folder / "ck" / "other.pt", (time.time() + 60,) * 2)
    resumed = training.run("--epochs", "6", BUILDER_RESUME=newest)
    warnings = [w["message"] for w in resumed.all_of("warning")]
    assert [str(newest) in warnings[0], "other.pt" in warnings[1], len(warnings)] == [True, True, 2]
    assert resumed.only("resume")["checkpoint"] == str(older)
    assert resumed.only("done") == uninterrupted.only("done")


def test_object_store(training: Training, uninterrupted: Result) -> None:
    """The code for s3:// addresses, with a local object store."""
    store = training.folder / "store"
    training.run("--epochs", "3", BUILDER_CHECKPOINT_DIR=f"file://{store}/run")
    assert sorted(p.name for p in (store / "run").iterdir()) == ["digits-0002-0000.pt", "digits-0003-0000.pt"]
    (store / "run" / "digits-0003-0000.pt").write_bytes(b"PK")
    resumed = training.run("--epochs", "6", BUILDER_CHECKPOINT_DIR=f"file://{store}/run")
    assert resumed.only("resume")["epoch"] == 2 and len(resumed.all_of("warning")) == 1
    assert resumed.only("done") == uninterrupted.only("done")
    refused = training.run("--epochs", "1", code=1, BUILDER_CHECKPOINT_DIR="nosuch://bucket")
    assert (
        "nosuch://bucket cannot be used for checkpoints" in refused.error and "Traceback" not in refused.error
    )
