"""Jobs for the standing Ray cluster.

``ray job submit`` runs in a container of the cluster's image, in its network: the version fits, and nothing
has to be installed on the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import UsageError
from builder.run.process import execute
from builder.services.engine import Engine
from builder.services.state import Stack, State
from builder.settings import user_name
from builder.site.shell import for_ray
from builder.store.files import write_atomic
from builder.text import human_bytes
from builder.trees.ignore import IGNORE_FILE, Ignore

#: Ray refuses larger folders: GCS_STORAGE_MAX_SIZE in its source.
MAX_UPLOAD = 500 << 20
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")
#: Left out of an upload: what tools and builder write, and what a job never reads.
_ALWAYS = (".git", "__pycache__", ".venv", ".cache", ".builder", "dist", "reports", "mlruns")


@dataclass(frozen=True, slots=True)
class Submission:
    """A command for the cluster."""

    command: tuple[str, ...]
    run: str = ""
    """The name of the run; empty: a new one. The same name again continues from its checkpoints."""
    folder: Path = Path()
    """The folder that the job gets a copy of, and starts in."""
    gpus: float = 0
    """GPUs that the command itself reserves. 0: it starts on the head, and asks for workers by Ray."""
    cpus: float = 0
    env: Mapping[str, str] = field(default_factory=dict)
    wait: bool = True
    capture: bool = False
    """Whether the output of the job is kept, and not shown."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted job."""

    id: str
    run: str
    checkpoints: str
    follow: str
    stop: str
    code: int
    output: str = ""
    """Of the job, where it is captured."""


def check(submission: Submission, stack: Stack) -> None:
    """Checks a submission.

    Raises:
        UsageError: no command, a wrong name, more than a worker has, or a folder that is too large.
    """
    if not submission.command:
        raise UsageError("no command", "builder services submit -- python train.py")
    if submission.run and not _RUN.fullmatch(submission.run):
        raise UsageError(
            f"--run {submission.run}: not a name", "letters, digits, dot, _ and - (at most 61): --run first"
        )
    most = 1 if stack.gpus else 0
    if submission.gpus > most:
        has = "has one GPU" if most else "has no GPU"
        ask = f"leave out --gpus, and ask for {int(submission.gpus)} workers by Ray Train in the script"
        raise UsageError(
            f"--gpus {submission.gpus:g}: each worker {has}", ask if most else "leave out --gpus"
        )
    if ":" in str(submission.folder.absolute()):
        raise UsageError(
            f"--folder {submission.folder}: the engine reads the colon as the end of the path",
            "give the folder another name",
        )
    size, largest = upload_size(submission.folder)
    if size > MAX_UPLOAD:
        raise UsageError(
            f"{submission.folder}: {human_bytes(size)}, and Ray takes at most {human_bytes(MAX_UPLOAD)};"
            f" the largest file is {largest}",
            f"name what a job does not need in {submission.folder / IGNORE_FILE}, or --folder FOLDER",
        )


def upload_size(folder: Path) -> tuple[int, str]:
    """The bytes that a job gets, and the largest file.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"--folder {folder}: no such folder", "name the folder of the training")
    ignore = Ignore(folder)
    total, largest, size = 0, "", -1
    for path, folders, names in os.walk(folder):
        here = Path(path)
        folders[:] = [
            name
            for name in folders
            if name not in _ALWAYS and not ignore.leaves_out(here / name, is_folder=True)
        ]
        for name in names:
            file = here / name
            if ignore.leaves_out(file, is_folder=False):
                continue
            with contextlib.suppress(OSError):
                one = file.lstat().st_size
                total += one
                if one > size:
                    largest, size = str(file.relative_to(folder)), one
    return total, largest


def runtime_env(submission: Submission, stack: Stack, user: str, run: str) -> dict[str, object]:
    """What Ray sets up for the job: variables, and what it leaves out of the folder."""
    patterns = [f"{name}/" for name in _ALWAYS]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = (submission.folder / IGNORE_FILE).read_text().splitlines()
        patterns += [line for line in lines if line.strip() and not line.startswith("#")]
    variables = {
        "MLFLOW_TRACKING_URI": "http://mlflow:8000",
        "MLFLOW_EXPERIMENT_NAME": submission.folder.resolve().name or stack.target,
        "BUILDER_RUN_NAME": run,
        "BUILDER_CHECKPOINT_DIR": checkpoints(stack, user, run),
        **submission.env,
    }
    return {"env_vars": variables, "excludes": patterns}


def checkpoints(stack: Stack, user: str, run: str) -> str:
    """Where a run keeps its checkpoints in the S3 store."""
    return f"s3://{stack.bucket}/checkpoints/{user}/{run}"


def submit(
    submission: Submission, stack: Stack, state: State, engine: Engine, note: Callable[[str], None]
) -> Submitted:
    """Submits a job; with ``wait`` its output is this process's output, until it ends.

    Args:
        submission: the job.
        stack: the servers.
        state: their folder.
        engine: the container program.
        note: receives how to follow and stop the job, before it starts.

    Raises:
        UsageError: see :func:`check`.
        RunnerError: the engine does not answer.
    """
    check(submission, stack)
    user = re.sub(r"[^A-Za-z0-9._-]", "-", user_name())
    number = f"{user}-{stack.target}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    run = submission.run or number
    head = stack.container("ray-head")
    follow = shlex.join([engine.program, "exec", head, "ray", "job", "logs", "--follow", number])
    stop = shlex.join([engine.program, "exec", head, "ray", "job", "stop", number])
    note(f"job {number}, run {run}")
    note(f"follow: {follow}")
    note(f"stop:   {stop}")
    metadata = {"user": user, "target": stack.target, "image": stack.image, "run": run}
    env = ["RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN_PATH=/run/secrets/ray-token"]
    with _runtime_file(runtime_env(submission, stack, user, run)) as runtime:
        words = [
            *(engine.program, "run", "--rm", f"--network={stack.project}_default"),
            *("--volume", f"{state.token_file}:/run/secrets/ray-token:ro"),
            *("--volume", f"{runtime}:/builder/runtime.json:ro"),
            *("--volume", f"{submission.folder.absolute()}:/job:ro"),
            *(word for variable in env for word in ("--env", variable)),
            *(stack.image, "ray", "job", "submit", "--address=http://ray-head:8265"),
            *("--submission-id", number, "--metadata-json", json.dumps(metadata)),
            *("--runtime-env", "/builder/runtime.json", "--working-dir", "/job"),
            *(("--entrypoint-num-gpus", f"{submission.gpus:g}") if submission.gpus else ()),
            *(("--entrypoint-num-cpus", f"{submission.cpus:g}") if submission.cpus else ()),
            *(() if submission.wait else ("--no-wait",)),
            *("--", *map(for_ray, submission.command)),
        ]
        done = execute(words, capture=submission.capture)
    output = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return Submitted(number, run, checkpoints(stack, user, run), follow, stop, done.returncode, output)


@contextlib.contextmanager
def _runtime_file(content: dict[str, object]) -> Iterator[Path]:
    """A file that only this user can read, because variables can be secrets."""
    folder = Path(tempfile.mkdtemp(prefix="builder-submit-"))
    try:
        write_atomic(folder / "runtime.json", json.dumps(content).encode(), 0o600)
        yield folder / "runtime.json"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
