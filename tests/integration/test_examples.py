"""examples/train_digits.py inside the image of target ``cpu``, by Apptainer: interrupted, resumed, given bad input."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import CLONE
from tests.support.parts import Apptainer

EXAMPLES = CLONE / "examples"
#: Imports torch once (seconds) and runs each training in a fork of itself (none).
SERVER = """
import json, os, runpy, sys
import torch, torch.distributed, torch._dynamo  # the last one is what optimizers import
for line in sys.stdin:
    case = json.loads(line)
    pid = os.fork()
    if not pid:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(case[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.environ.update(case["env"])
        sys.argv = [case["script"], *case["arguments"]]
        runpy.run_path(case["script"], run_name="__main__")
        sys.exit("main() came back")
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass
class Image:
    """A Python with torch inside the image, waiting for work."""

    server: subprocess.Popen[str]

    def ask(self, case: dict[str, Any]) -> int:
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(case) + "\n")
        self.server.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line, "the Python in the image has ended"
        return int(line)


@dataclass
class Training:
    """The example in a folder that is its whole world."""

    image: Image
    folder: Path

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.folder / "ck").glob("*.pt"))

    def start(self, *arguments: str, **variables: str | Path) -> int:
        """Gives the process's id; ``end`` has to follow."""
        script, out, err = EXAMPLES / "train_digits.py", self.folder / "out", self.folder / "err"
        env = {"BUILDER_CHECKPOINT_DIR": self.folder / "ck", **variables}
        out.unlink(missing_ok=True)
        case = {"script": str(script), "arguments": arguments, "out": str(out), "err": str(err)}
        return self.image.ask({**case, "env": {k: str(v) for k, v in env.items()}})

    def end(self, code: int) -> Said:
        ended = self.image.answer()
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        assert ended == code, f"{ended}: {out}{err}"
        return Said([json.loads(line) for line in out.splitlines()], err)

    def run(self, *arguments: str, code: int = 0, **variables: str | Path) -> Said:
        self.start(*arguments, **variables)
        return self.end(code)

    def until(self, found: Callable[[dict[str, Any]], bool], patience_s: float = 60) -> None:
        """Waits for an event of the training that runs."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            said = (self.folder / "out").read_text() if (self.folder / "out").exists() else ""
            if any(found(json.loads(line)) for line in said.splitlines(keepends=True) if line.endswith("\n")):
                return
            time.sleep(0.01)
        pytest.fail(f"it did not say it:\n{said}{(self.folder / 'err').read_text()}")


@dataclass
class Said:
    events: list[dict[str, Any]]
    error: str

    def all(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event]

    def the(self, event: str) -> dict[str, Any]:
        (found,) = self.all(event)
        return found


@pytest.fixture(scope="module")
def inside(apptainer: Apptainer, cpu_sif: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    binds = ["--bind", EXAMPLES, "--bind", tmp_path_factory.getbasetemp()]
    words = [apptainer.path, "exec", *binds, cpu_sif, "python", "-c", SERVER]
    server = subprocess.Popen(
        words, env=apptainer.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Image(server)
    finally:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.close()
        server.wait(30)
        server.stdout.close()


@pytest.fixture
def training(inside: Image, tmp_path: Path) -> Training:
    return Training(inside, tmp_path)


@pytest.fixture(scope="module")
def uninterrupted(inside: Image, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Six epochs in one go."""
    return Training(inside, tmp_path_factory.mktemp("whole")).run("--epochs", "6")


def test_it_learns(uninterrupted: Said) -> None:
    assert [e["epoch"] for e in uninterrupted.all("epoch")] == [1, 2, 3, 4, 5, 6]
    losses = [e["loss"] for e in uninterrupted.all("epoch")]
    assert losses[-1] < losses[0] / 5
    assert uninterrupted.the("done")["accuracy"] > 0.85  # a guess is right one time in ten


def test_ended_by_sigterm_it_goes_on_to_the_same_weights(training: Training, uninterrupted: Said) -> None:
    pid = training.start("--epochs", "6", "--pause", "0.1")
    training.until(lambda e: e["event"] == "epoch" and e["epoch"] == 2)
    time.sleep(0.25)  # some steps into the third epoch
    os.kill(pid, signal.SIGTERM)
    stopped = training.end(143).the("stopped")
    assert stopped["signal"] == "SIGTERM" and stopped["epoch"] == 2 and 0 < stopped["step"] < 14
    resumed = training.run("--epochs", "6")
    assert (resumed.the("resume")["epoch"], resumed.the("resume")["step"]) == (2, stopped["step"])
    assert resumed.the("done") == uninterrupted.the("done")  # the weights too, bit for bit
    assert resumed.all("epoch")[0]["loss"] == pytest.approx(uninterrupted.all("epoch")[2]["loss"], rel=1e-12)
    again = training.run("--epochs", "6")  # another piece of the chain finds nothing left to do
    assert again.the("done") == uninterrupted.the("done") and not again.all("epoch")
    more = training.run("--epochs", "7")
    assert [e["epoch"] for e in more.all("epoch")] == [7]


def test_killed_it_goes_on_from_the_last_epoch(training: Training, uninterrupted: Said) -> None:
    pid = training.start("--epochs", "6", "--pause", "0.1")
    training.until(lambda e: e["event"] == "checkpoint" and "digits-0003-" in e["checkpoint"])
    os.kill(pid, signal.SIGKILL)
    training.end(-signal.SIGKILL)
    shutil.copy(
        training.checkpoints[0], training.folder / "ck" / "digits-0009-0000.pt.part"
    )  # killed while it wrote
    resumed = training.run("--epochs", "6")
    assert resumed.the("resume")["epoch"] == 3
    assert resumed.the("done") == uninterrupted.the("done")
    assert sorted(p.name for p in (training.folder / "ck").iterdir()) == [
        "digits-0005-0000.pt",
        "digits-0006-0000.pt",
    ]


def test_bad_checkpoints_are_passed_over(training: Training, uninterrupted: Said) -> None:
    training.run("--epochs", "3")
    older, newest = training.checkpoints
    data = newest.read_bytes()
    newest.write_bytes(data[: len(data) // 2])
    (training.folder / "ck" / "other.pt").write_bytes(b"")
    os.utime(training.folder / "ck" / "other.pt", (time.time() + 60,) * 2)
    resumed = training.run("--epochs", "6", BUILDER_RESUME=newest)
    warnings = [w["message"] for w in resumed.all("warning")]
    assert [str(newest) in warnings[0], "other.pt" in warnings[1], len(warnings)] == [True, True, 2]
    assert resumed.the("resume")["checkpoint"] == str(older)
    assert resumed.the("done") == uninterrupted.the("done")


def test_the_checkpoint_that_the_job_names_is_taken(training: Training) -> None:
    training.run("--epochs", "3")
    older, _ = training.checkpoints
    assert training.run("--epochs", "3", BUILDER_RESUME=older).the("resume")["checkpoint"] == str(older)


def test_checkpoints_in_an_object_store(training: Training, uninterrupted: Said) -> None:
    """The road of s3:// addresses, with a store that is here."""
    store = training.folder / "store"
    training.run("--epochs", "3", BUILDER_CHECKPOINT_DIR=f"file://{store}/run")
    assert sorted(p.name for p in (store / "run").iterdir()) == ["digits-0002-0000.pt", "digits-0003-0000.pt"]
    (store / "run" / "digits-0003-0000.pt").write_bytes(b"PK")
    resumed = training.run("--epochs", "6", BUILDER_CHECKPOINT_DIR=f"file://{store}/run")
    assert resumed.the("resume")["epoch"] == 2 and len(resumed.all("warning")) == 1
    assert resumed.the("done") == uninterrupted.the("done")
    refused = training.run("--epochs", "1", code=1, BUILDER_CHECKPOINT_DIR="nosuch://bucket")
    assert (
        "nosuch://bucket cannot be used for checkpoints" in refused.error and "Traceback" not in refused.error
    )


def test_other_settings_than_the_checkpoint_s_are_refused(training: Training) -> None:
    training.run("--epochs", "1")
    said = training.run("--epochs", "2", "--seed", "7", code=1)
    assert "'seed': 1" in said.error and "'seed': 7" in said.error and "--checkpoint-dir" in said.error


def test_what_is_wrong_with_its_surroundings_is_said(training: Training) -> None:
    def refused(*arguments: str, **variables: str | Path) -> str:
        said = training.run(*arguments, code=1, **variables)
        assert "Traceback" not in said.error
        return said.error

    data = training.folder / "data"
    data.mkdir()
    assert f"BUILDER_DATA is {data}, and no digits.csv.gz is in it" in refused(BUILDER_DATA=data)
    (data / "digits.csv.gz").write_bytes(gzip.compress(b"1,2,3\n"))
    assert f"{data}/digits.csv.gz cannot be read" in refused(BUILDER_DATA=data)
    (data / "digits.csv.gz").write_bytes((EXAMPLES / "digits.csv.gz").read_bytes()[:20000])
    assert f"{data}/digits.csv.gz cannot be read" in refused(BUILDER_DATA=data)
    assert "WORLD_SIZE is 2, but RANK is not set" in refused(WORLD_SIZE="2")
    assert "RANK is 'one', not a number" in refused(RANK="one")
    (training.folder / "file").touch()
    assert "cannot be used for checkpoints" in refused("--checkpoint-dir", str(training.folder / "file"))
    assert "more than the 1437 images" in refused("--batch-size", "2000")


def test_missing_logs_do_not_stop_the_training(training: Training) -> None:
    """The image has neither mlflow nor tensorboard."""
    said = training.run(
        "--epochs",
        "1",
        "--tensorboard",
        str(training.folder / "tb"),
        MLFLOW_TRACKING_URI="http://127.0.0.1:9",
    )
    warnings = [w["message"] for w in said.all("warning")]
    assert "--tensorboard is left out: No module named 'tensorboard'" in warnings[0]
    assert "nothing goes to MLflow: ModuleNotFoundError" in warnings[1]
    assert said.the("done")["epochs"] == 1
