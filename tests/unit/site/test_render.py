"""Output of ``builder run --print`` and ``builder job`` for every recipe, compared with golden files.

``BUILDER_GOLDEN=write pytest tests/unit/site/test_render.py`` writes the golden files. Check the difference
before committing it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.config.recipe import recipe_files
from builder.site.shell import command_line

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
COMMAND = ["python", "train.py", "--note", 'it\'s "100 $" & more']


#: Golden file -> target and options of builder job.
SCRIPTS = {
    "cpu.torchrun.sh": ("cpu", "--tasks 2 --launcher torchrun --checkpoint checkpoints"),
    "perlmutter.gpu.sh": ("perlmutter", "--account m558"),
    "perlmutter.node.sh": (
        "perlmutter",
        "--account m558 --gpus 4 --data $SCRATCH/set.tar --checkpoint $SCRATCH/run",
    ),
    "perlmutter.nodes.sh": ("perlmutter", "--account m558 --nodes 2 --mlflow https://mlflow.example.org"),
    "lumi-g.gpu.sh": ("lumi-g", "--account project_465000000"),
    "lumi-g.node.sh": ("lumi-g", "--account project_465000000 --gpus 8"),
    "lumi-g.nodes.sh": (
        "lumi-g",
        "--account project_465000000 --nodes 4 --check-fabric --data /scratch/project_465000000/set.tar",
    ),
    "lumi-g.torchrun.sh": ("lumi-g", "--account project_465000000 --nodes 2 --launcher torchrun"),
    "archer2-gpu.gpu.sh": ("archer2-gpu", "--account z19"),
    "archer2-gpu.nodes.sh": ("archer2-gpu", "--account z19 --nodes 2"),
    "archer2-cpu.mpi.sh": ("archer2-cpu", "--account z19 --nodes 32"),
    "archer2-tensorflow.mpi.sh": ("archer2-tensorflow", "--account z19 --nodes 32"),
    # Course of Chameleon (mltrain-chi b8413d9, 2026-03-05, docker/docker-compose-ray-rocm.yaml): devices
    # /dev/kfd and /dev/dri/renderD128 (worker 1: renderD129), HIP_VISIBLE_DEVICES=0, `--num-cpus=32`.
    "chameleon-mi100.ray.sh": (
        "chameleon-mi100",
        "--gpus 2 --mlflow http://10.0.0.5:8000 --checkpoint s3://ray --data set.tar",
    ),
    "chameleon-a100.ray.sh": ("chameleon-a100", ""),
    "chameleon-a100.torchrun.sh": ("chameleon-a100", "--gpus 2 --launcher torchrun"),
    # Course of Chameleon (mltrain-chi b8413d9, 2026-03-05, docker/docker-compose-ray-cuda.yaml):
    # `ray start --address=ray-head:6379 --num-cpus=32 --num-gpus=1 --block`, `shm_size: '12g'`,
    # `food11:/mnt`, `driver: "nvidia"`, `device_ids: ["0"]`. Cores: reference-repository 5da0590, 2026-06-26.
    "chameleon-a100-pcie.ray.sh": ("chameleon-a100-pcie", "--gpus 4 --bind food11:/mnt"),
    "chameleon-gigaio.ray.sh": ("chameleon-gigaio", ""),
    "chameleon-h100.ray.sh": ("chameleon-h100", "--gpus 4 --checkpoint s3://ray/run"),
    "chameleon-h100-vm.ray.sh": ("chameleon-h100-vm", "--checkpoint checkpoints"),
    "alliance-cedar.gpu.sh": ("alliance-cedar", "--account def-someuser"),
    "alliance-graham.gpu.sh": ("alliance-graham", "--account def-someuser"),
    "alliance-beluga.gpu.sh": ("alliance-beluga", "--account def-someuser"),
    "alliance-fir.chain.sh": ("alliance-fir", "--account def-someuser --data set.tar --chain 7"),
    "alliance-nibi.node.sh": ("alliance-nibi", "--account def-someuser --gpus 8"),
    "alliance-rorqual.gpu.sh": ("alliance-rorqual", "--account def-someuser --gpus 2"),
    "alliance-narval.nodes.sh": ("alliance-narval", "--account def-someuser --nodes 2 --time 0-12:00"),
}


INTERACTIVE = {
    "perlmutter.salloc.txt": ("perlmutter", "--account PROJECT --interactive"),
    "lumi-g.salloc.txt": ("lumi-g", "--account project_465000000 --interactive"),
    "archer2-cpu.salloc.txt": ("archer2-cpu", "--account z19 --interactive"),
    "alliance-nibi.salloc.txt": ("alliance-nibi", "--account def-someuser --interactive"),
}


TARGETS = sorted(recipe_files(ROOT))


def builder(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Runs builder, which must succeed, and returns its standard output."""
    code = run(cli, ["--project", str(ROOT), *args])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def golden(name: str, text: str) -> None:
    """Compares a text with a golden file, or writes the file."""
    path = GOLDEN / name
    if os.environ.get("BUILDER_GOLDEN") == "write":
        path.write_text(text)
    assert path.exists(), f"no {path}: BUILDER_GOLDEN=write pytest {__file__}"
    assert text == path.read_text()


@pytest.mark.parametrize("name", [*SCRIPTS, *INTERACTIVE])
def test_golden_jobs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    target, options = {**SCRIPTS, **INTERACTIVE}[name]
    golden(name, builder(capsys, "job", target, *options.split(), "--", *COMMAND))


@pytest.mark.parametrize("target", TARGETS)
def test_golden_commands(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    golden(f"{target}.run.txt", builder(capsys, "run", target, "--print", "--", *COMMAND))


def test_golden_files_are_complete() -> None:
    """Every recipe has golden files, and no golden file is unused."""
    names = {*SCRIPTS, *INTERACTIVE, *(f"{t}.run.txt" for t in TARGETS)}
    assert {p.name for p in GOLDEN.iterdir()} == names
    assert {target for target, _ in SCRIPTS.values()} == set(TARGETS)


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_shellcheck(name: str) -> None:
    """Scripts are valid bash, and shellcheck finds nothing."""
    subprocess.run(["bash", "-n", GOLDEN / name], check=True)
    if shutil.which("shellcheck") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("shellcheck is not installed")
        pytest.skip("shellcheck is not installed (make apt-test)")
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "--severity=style", GOLDEN / name], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_printed_command_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """A shell reads the original words from the printed line."""
    line = builder(capsys, "run", "perlmutter", "--print", "--", *COMMAND).strip()
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\0")[-5:-1] == COMMAND
    assert command_line(["a", "$b"]) == 'a "\\$b"'
