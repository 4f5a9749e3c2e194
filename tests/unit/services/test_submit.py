"""Jobs for the cluster: what is uploaded, what is checked, and what is on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.services import submit as module
from builder.services.engine import Engine
from builder.services.state import State
from builder.services.submit import Submission, check, runtime_env, submit, upload_size
from tests.unit.services.conftest import Program
from tests.unit.services.test_state import STACK


def test_command(project: Path, docker: Program) -> None:
    """The job runs in the cluster's network and image. Variables are in a file, which is removed."""
    notes: list[str] = []
    env = {"TOKEN": "geheim"}
    job = Submission(("python", "train.py"), run="first", folder=project, cpus=2, env=env, wait=False)
    done = submit(job, STACK, State.of("services", None), Engine("docker"), notes.append)
    (line,) = docker.calls()
    assert line.startswith("run --rm --network=builder-services-0_default ")
    assert f"--submission-id {done.id} " in line and line.endswith("--no-wait -- python train.py")
    assert "--entrypoint-num-cpus 2 " in line and "--entrypoint-num-gpus" not in line
    assert "geheim" not in line
    runtime = next(word for word in line.split() if word.endswith(":/builder/runtime.json:ro"))
    assert not Path(runtime.split(":")[0]).exists()
    assert done.code == 0 and done.checkpoints.endswith("/first")
    assert [note for note in notes if f"ray job stop {done.id}" in note]


def test_variables(project: Path) -> None:
    """A job knows the tracking server, its run and its checkpoints; the user's own values win."""
    (project / ".builderignore").write_text("# large\n*.bin\n")
    job = Submission(("true",), folder=project, env={"MLFLOW_EXPERIMENT_NAME": "mine"})
    found = json.loads(json.dumps(runtime_env(job, STACK, "ann", "first")))
    assert found["env_vars"] == {
        "MLFLOW_TRACKING_URI": "http://mlflow:8000",
        "MLFLOW_EXPERIMENT_NAME": "mine",
        "BUILDER_RUN_NAME": "first",
        "BUILDER_CHECKPOINT_DIR": "s3://builder/checkpoints/ann/first",
    }
    assert found["excludes"][-1] == "*.bin" and ".git/" in found["excludes"]


def test_upload(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out does not count; too much is refused with the largest file."""
    (project / ".builderignore").write_text("*.bin\n")
    (project / "a.bin").write_bytes(bytes(1000))
    (project / "b.dat").write_bytes(bytes(500))
    before, largest = upload_size(project)
    assert largest == "b.dat"
    monkeypatch.setattr(module, "MAX_UPLOAD", before - 1)
    with pytest.raises(UsageError, match=r"largest file is b\.dat"):
        check(Submission(("true",), folder=project), STACK)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Submission(()), "no command"),
        (Submission(("x",), run="a b"), "not a name"),
        (Submission(("x",), gpus=1), "has no GPU"),
        (Submission(("x",), folder=Path("missing")), "no such folder"),
        (Submission(("x",), folder=Path("a:b")), "reads the colon"),
    ],
)
def test_bad_jobs(project: Path, job: Submission, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(job, STACK)
