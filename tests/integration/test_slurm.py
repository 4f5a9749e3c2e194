"""Scripts of ``builder job`` in a real Slurm: a SIF, Apptainer, and examples/train_digits.py."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.formats.net.pipconfig import pip_configuration
from builder.lock.config.recipe import load_recipe, recipe_files
from tests.integration.conftest import CLONE, Builder, new_project
from tests.support.documents import checked
from tests.support.parts import Apptainer
from tests.support.programs import run_program
from tests.support.slurm import Slurm

#: An account of the form that LUMI has; this Slurm accepts any.
ACCOUNT = "project_465000001"
#: The tests' own site: this Slurm, this Apptainer.
HERE = """\
extends: cpu
description: the Slurm of the tests
format: sif
site:
  title: Here
  images: {images}
  runtime:
    kind: apptainer
    clean_env: true
    binds: ["{torch}:/torch:ro", "{torch}/bin/torchrun:/usr/local/bin/torchrun:ro"]
    env: {{PYTHONPATH: /torch}}
  node: {{cores: 2, tasks: 2}}
  local: /mnt/$USER-$SLURM_JOB_ID
  slurm:
    account: optional
    time: "00:10:00"
    queues:
      cpu: {{partition: debug}}
      build: {{partition: debug, time: "00:05:00"}}
"""
#: The same nodes with builder's own runtime.
OWN = """\
extends: cpu
site:
  node: {cores: 2, tasks: 2}
  slurm: {account: optional, time: "00:10:00", queues: {cpu: {partition: debug}}}
"""
#: LUMI-G's own recipe, without its file systems.
LUMI = """\
extends: lumi-g
description: jobs of LUMI-G on this Slurm
site:
  images: {images}
  runtime:
    binds: []
  fabric:
    binds: []
"""


@dataclass
class Here:
    """A project whose sites use this Slurm, and a folder to submit jobs from."""

    slurm: Slurm
    builder: Builder
    env: dict[str, str]
    work: Path

    @property
    def images(self) -> Path:
        return self.builder.root.parent / "images"

    def job(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs ``builder job ARGUMENTS`` in the folder."""
        env = {**self.env, "PYTHONPATH": str(CLONE)}
        return run_program(self.builder.command("job", *arguments), env, check=check, cwd=self.work)

    def submit(self, *arguments: str | Path) -> str:
        return self.job("--submit", *arguments).stdout.strip()

    def output(self, job: str) -> str:
        """Returns the output of a job, or of all segments of a chain."""
        return "".join(p.read_text() for p in sorted(self.work.glob(f"*-{job}*.out")))

    def finish(self, job: str, *states: str) -> str:
        """Waits for the job and returns its output. The final states must be these (default: COMPLETED)."""
        got = self.slurm.wait(job)
        assert got == list(states or ("COMPLETED",)), f"{got}:\n{self.output(job)}"
        return self.output(job)


def events(output: str, event: str) -> list[dict[str, Any]]:
    """Returns the training's events of one kind in a job's output."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith('{"event"')]
    return [e for e in found if e["event"] == event]


@pytest.fixture(scope="module")
def project(
    slurm: Slurm,
    cpu: Builder,
    cpu_sif: Path,
    torch: Path,
    apptainer: Apptainer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Here:
    folder = tmp_path_factory.mktemp("here")
    root = new_project(folder / "project", "cpu", "lumi-g")
    shutil.copy(CLONE / "recipes" / "_common.yaml", root / "recipes")
    images = folder / "images"
    images.mkdir()
    for name, text in (("here", HERE), ("lumi-here", LUMI)):
        (root / "recipes" / f"{name}.yaml").write_text(text.format(images=images, torch=torch))
        (images / f"{name}.sif").symlink_to(cpu_sif)
    lock = cpu.root / "environments" / "cpu.cpu.lock.yml"
    shutil.copy(lock, root / "environments" / "cpu.here.lock.yml")
    env = {**slurm.env, **apptainer.env, "USER": "tester", "OMP_NUM_THREADS": "1"}
    return Here(slurm, Builder(root, cpu.cache), env, folder)


@pytest.fixture
def here(project: Here, tmp_path: Path) -> Here:
    shutil.copy(CLONE / "examples" / "train_digits.py", tmp_path)
    shutil.copy(CLONE / "examples" / "digits.csv.gz", tmp_path)
    return Here(project.slurm, project.builder, project.env, tmp_path)


#: The example with six epochs.
TRAIN = ("--", "python", "train_digits.py", "--epochs", "6")
#: Rank 1 stops once in epoch 3 and once in epoch 4, until it is killed or receives a signal. After a signal
#: it is slow, until there is a file.
HOLD = """\
def hold(training):
    epoch, here = training.progress.epoch, Path(f"held-{training.progress.epoch}")
    if training.ranks.rank == 1 and epoch in (2, 3) and training.progress.step == 4 and not here.exists():
        here.touch()
        while not training.stop_signals or not Path("may-stop").exists():
            time.sleep(0.1)
"""


def pack(here: Here) -> None:
    """Packs the data into a tar, and removes the original."""
    with tarfile.open(here.work / "digits.tar", "w") as tar:
        tar.add(here.work / "digits.csv.gz", "set/digits.csv.gz")
    (here.work / "digits.csv.gz").unlink()


def two_nodes(here: Here, launcher: str) -> dict[str, Any]:
    """Train with one rank on each of two nodes, on data from a tar; return the result."""
    pack(here)
    options = ["--nodes", "2", "--tasks", "1", "--launcher", launcher, "--data", "digits.tar"]
    output = here.finish(here.submit("here", *options, "--checkpoint", "ck", *TRAIN))
    (start,), (done,) = events(output, "start"), events(output, "done")
    assert (start["world_size"], start["backend"]) == (2, "gloo")
    assert not [f for node in ("node1", "node2") for f in here.slurm.disk(node).rglob("*.gz")]
    return done


@pytest.fixture(scope="module")
def uninterrupted(project: Here) -> dict[str, Any]:
    """The result of two ranks that srun starts on two nodes."""
    folder = project.work / "uninterrupted"
    folder.mkdir()
    for name in ("train_digits.py", "digits.csv.gz"):
        shutil.copy(CLONE / "examples" / name, folder)
    done = two_nodes(Here(project.slurm, project.builder, project.env, folder), "srun")
    assert done["accuracy"] > 0.85
    return done


def test_torchrun(here: Here, uninterrupted: dict[str, Any]) -> None:
    """Ranks that torchrun starts end with the same weights, bit for bit."""
    assert two_nodes(here, "torchrun") == uninterrupted


def training_of(job: str, rank: int) -> int:
    """Returns the process id of a rank in a job array."""
    marks = {f"SLURM_ARRAY_JOB_ID={job}".encode(), f"RANK={rank}".encode()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if (
                b"train_digits.py" in words
                and words[0].endswith(b"python")
                and marks <= set((process / "environ").read_bytes().split(b"\0"))
            ):
                return int(process.name)
    raise AssertionError(f"no process of job {job} has rank {rank}")


def test_interrupted_chain(here: Here, uninterrupted: dict[str, Any]) -> None:
    """A rank of segment 1 is killed, segment 2 is cancelled, segment 3 waits for its checkpoint and finishes,
    segment 4 has nothing to do."""
    program = here.work / "train_digits.py"
    text = program.read_text().replace("time.sleep(self.options.pause)", "hold(self)")
    program.write_text(text.replace("def main()", f"{HOLD}\n\ndef main()"))
    number = here.submit("here", "--chain", "4", *TRAIN)
    folder = here.work / "checkpoints" / "here"

    def wait_for(happened: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not happened():
            assert time.monotonic() < end, here.output(number)
            time.sleep(0.1)

    wait_for((here.work / "held-2").exists)
    wait_for(lambda: len(events(here.output(f"{number}_1"), "checkpoint")) == 2)
    os.kill(training_of(number, rank=1), signal.SIGKILL)
    wait_for((here.work / "held-3").exists)  # some steps into an epoch
    wait_for(lambda: len(events(here.output(f"{number}_2"), "epoch")) == 1)
    here.slurm.run("scancel", f"{number}_2")
    wait_for(lambda: "restart 0" in here.output(f"{number}_3"))  # while segment 2 is still there
    (here.work / "may-stop").touch()
    output = here.finish(number, "FAILED", "CANCELLED", "COMPLETED", "COMPLETED")
    first, second, third, fourth = (here.output(f"{number}_{segment}") for segment in (1, 2, 3, 4))
    assert "checkpoint: none, starting from the beginning" in first and not events(first, "stopped")
    (resumed,) = events(second, "resume")
    assert (resumed["epoch"], resumed["step"]) == (2, 0)
    (stopped,) = events(second, "stopped")
    assert stopped["signal"] in ("SIGTERM", "signal of another rank")
    (again,) = events(third, "resume")
    assert (again["epoch"], again["step"]) == (stopped["epoch"], stopped["step"])
    assert f"checkpoint: {again['checkpoint']}" in third and Path(again["checkpoint"]).parent == folder
    assert events(output, "done") == [uninterrupted]  # bit for bit, after two interruptions
    assert "an earlier segment has finished the training" in fourth and not events(fourth, "start")


def test_exit_code(here: Here) -> None:
    """The exit code of the program is the exit code of the job."""
    # rank 1 ends last: srun kills the other ranks when one has failed
    wait = "while [ $RANK = 1 ] && [ ! -e ended ]; do sleep 0.1; done"
    show = f"echo \"rank $RANK 'of' $WORLD_SIZE\"; {wait}; touch ended; exit $((RANK * 5))"
    number = here.submit("here", "--tasks", "2", "--", "sh", "-c", show)
    assert here.slurm.wait(number) == ["FAILED"]
    assert here.slurm.show(number)[0]["ExitCode"] == "5:0"
    assert {"rank 0 'of' 2", "rank 1 'of' 2"} <= set(here.output(number).splitlines())


def error_message(here: Here, target: str, *options: str) -> str:
    done = here.job(target, *options, "--submit", "--", "true", check=False)
    assert done.returncode == 10 and "Traceback" not in done.stderr, done
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("partition", "reason"),
    [("nosuch", "invalid partition specified: nosuch"), ("dev-g", "Requested time limit is invalid")],
)
def test_rejected_jobs(partition: str, reason: str, here: Here) -> None:
    """The error contains Slurm's reason: a partition that does not exist, one with a limit of 3 hours."""
    site = f"site: {{slurm: {{queues: {{cpu: {{partition: {partition}}}}}}}}}"
    (here.builder.root / "recipes" / "nowhere.yaml").write_text(f"extends: here\n{site}\n")
    message = error_message(here, "nowhere", "--time", "04:00:00")
    assert "Slurm rejected the job: " in message and reason in message
    assert "correct what Slurm names: account" in message


def test_lumi_ranks(here: Here) -> None:
    """LUMI-G's recipe without its file systems: 16 ranks on two whole nodes of partition standard-g."""
    show = (
        'echo "rank=$RANK local=$LOCAL_RANK of=$WORLD_SIZE on=$(uname -n) '
        'via=$MASTER_ADDR:$MASTER_PORT if=$NCCL_SOCKET_IFNAME"'
    )
    number = here.submit("lumi-here", "--nodes", "2", "--account", ACCOUNT, "--", "sh", "-c", show)
    lines = sorted(x for x in here.finish(number).splitlines() if x.startswith("rank="))
    port = lines[0].partition("via=node1:")[2].split()[0]
    via = f"via=node1:{port} if=hsn"
    expected = [f"rank={r} local={r % 8} of=16 on=node{1 + r // 8} {via}" for r in range(16)]
    assert lines == sorted(expected)
    (job,) = here.slurm.show(number)
    assert (job["Partition"], job["NumNodes"], job["NumTasks"], job["CPUs/Task"]) == (
        "standard-g",
        "2",
        "16",
        "7",
    )


def test_own_runtime(here: Here) -> None:
    """A job's variables reach the program in builder's own runtime, too; others do not."""
    (here.builder.root / "recipes" / "own.yaml").write_text(OWN)
    locks = here.builder.root / "environments"
    shutil.copy(locks / "cpu.here.lock.yml", locks / "cpu.own.lock.yml")
    here.builder.run("build", "own")
    of_job = {"MLFLOW_TRACKING_URI": "http://h/?a=1&b=2", "NCCL_DEBUG": "3", "OTHER": "1"}
    here.env |= {**of_job, "PATH": f"{Path(sys.executable).parent}:{here.env['PATH']}"}
    names = ["SLURM_JOB_ID", "RANK", *of_job]
    show = f"import os; print([os.environ.get(name) for name in {names}])"
    number = here.submit("own", "--", "python", "-c", show)
    output = here.finish(number)
    for rank in "01":
        assert str([number, rank, "http://h/?a=1&b=2", "3", None]) in output


def test_build_job(here: Here) -> None:
    """``builder build --on slurm`` runs builder on a node, and the result is on this machine."""
    configured = pip_configuration()  # the lock may contain files that only pip's configuration leads to
    links = {"PIP_FIND_LINKS": configured.find_links, "PIP_EXTRA_INDEX_URL": configured.extra_index_urls}
    mirrors = {"BUILDER_MIRRORS": os.environ.get("BUILDER_MIRRORS", "")}
    env = {**here.env, **mirrors, "PYTHONPATH": str(CLONE), **{k: " ".join(v) for k, v in links.items()}}
    done = subprocess.run(
        here.builder.command("build", "here", "--on", "slurm", "--json"),
        env=env,
        cwd=here.work,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = checked(json.loads(done.stdout))
    assert result["format"] == "sif" and Path(result["sif"]).stat().st_size == result["size"]


@pytest.mark.parametrize("target", sorted(recipe_files(CLONE)))
def test_options_of_sites(slurm: Slurm, target: str) -> None:
    """sbatch knows each option of each site; this Slurm has neither its partitions nor its nodes."""
    recipe = load_recipe(target, CLONE)
    if recipe.site.slurm is None:
        return
    account = recipe.site.slurm.account_example
    script = render(
        plan_job(recipe, JobRequest(("true",), nodes=2, gpus=recipe.site.node.gpus, account=account))
    )
    done = subprocess.run(
        ["sbatch", "--test-only"], input=script, env=slurm.env, capture_output=True, text=True
    )
    known = r"partition|node|feature|generic resource|GRES|constraint|time|Memory|CPU|processors|to start at"
    assert re.search(known, done.stderr), done.stderr
    assert not re.search("unrecognized option|nvalid option|Invalid directive", done.stderr), done.stderr
