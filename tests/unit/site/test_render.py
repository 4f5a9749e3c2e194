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
from tests.unit.site import test_newer_sites as newer

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
COMMAND = ["python", "train.py", "--note", 'it\'s "100 $" & more']


#: Golden file -> target and options of builder job. The comment above an entry names the text of the site
#: with which the file was compared, and the day of that text.
SCRIPTS = {
    "cpu.torchrun.sh": ("cpu", "--tasks 2 --launcher torchrun --checkpoint checkpoints"),
    "cpu-jax.sh": ("cpu-jax", ""),
    # BLAST-AI-ML/synapse ml/training_pm.sbatch (2026-03-04); QOS shared for parts of a node:
    # docs.nersc.gov/jobs/policy, as copied by users in 2026-09.
    "perlmutter.gpu.sh": ("perlmutter", "--account m558"),
    # The same; QOS regular, 32 hardware threads for each GPU: docs.nersc.gov/jobs/policy (2026-09).
    "perlmutter.node.sh": (
        "perlmutter",
        "--account m558 --gpus 4 --data $SCRATCH/set.tar --checkpoint $SCRATCH/run",
    ),
    # NERSC/podman-hpc etc/modules.d/nccl.yaml (2026-04-24), which passes no devices; users'
    # measurements of 2026.
    "perlmutter.nodes.sh": ("perlmutter", "--account m558 --nodes 2 --mlflow https://mlflow.example.org"),
    # podman-hpc etc/modules.d/{mpich,nccl}.yaml (2026-04-24): both set LD_LIBRARY_PATH, and a -e of the
    # user wins.
    "perlmutter.mpi.sh": ("perlmutter", "--account m558 --nodes 2 --launcher mpi --check-fabric"),
    # Lumi-supercomputer/LUMI-AI-Guide 01-quickstart/run.sh (2026-05).
    "lumi-g.gpu.sh": ("lumi-g", "--account project_465000000"),
    # LUMI-AI-Guide 05-multi-gpu-and-node/run_ddp_srun.sh (2026-05).
    "lumi-g.node.sh": ("lumi-g", "--account project_465000000 --gpus 8"),
    # LUMI-AI-Guide 05-multi-gpu-and-node/run_ddp_srun_4.sh (2026-05), pull requests 97 (2026-05) and
    # 118 (2026-09).
    "lumi-g.nodes.sh": (
        "lumi-g",
        "--account project_465000000 --nodes 4 --check-fabric --data /scratch/project_465000000/set.tar",
    ),
    # LUMI-AI-Guide 05-multi-gpu-and-node/run_ddp_torchrun_4.sh (2026-05).
    "lumi-g.torchrun.sh": ("lumi-g", "--account project_465000000 --nodes 2 --launcher torchrun"),
    # Switched off on 2026-11-21. ARCHER2-HPC/archer2-docs docs/user-guide/gpu.md (2026-05-27).
    "archer2-gpu.gpu.sh": ("archer2-gpu", "--account z19"),
    # The same, docs/user-guide/machine-learning.md: DeepCam on GPUs (2026-05-14).
    "archer2-gpu.nodes.sh": ("archer2-gpu", "--account z19 --nodes 2"),
    # The same, DeepCam on CPUs, and docs/user-guide/containers.md (2026-05-14).
    "archer2-cpu.mpi.sh": ("archer2-cpu", "--account z19 --nodes 32"),
    # The same, CosmoFlow on CPUs (2026-05-14).
    "archer2-tensorflow.mpi.sh": ("archer2-tensorflow", "--account z19 --nodes 32"),
    # Course of Chameleon (mltrain-chi b8413d9, 2026-03-05, docker/docker-compose-ray-rocm.yaml): devices
    # /dev/kfd and /dev/dri/renderD128 (worker 1: renderD129), HIP_VISIBLE_DEVICES=0, `--num-cpus=32`.
    "chameleon-mi100.ray.sh": (
        "chameleon-mi100",
        "--gpus 2 --mlflow http://10.0.0.5:8000 --checkpoint s3://ray --data set.tar",
    ),
    # The same course, docker/docker-compose-ray-cuda.yaml (2026-03-05).
    "chameleon-a100.ray.sh": ("chameleon-a100", ""),
    "chameleon-a100.torchrun.sh": ("chameleon-a100", "--gpus 2 --launcher torchrun"),
    # Course of Chameleon (mltrain-chi b8413d9, 2026-03-05, docker/docker-compose-ray-cuda.yaml):
    # `ray start --address=ray-head:6379 --num-cpus=32 --num-gpus=1 --block`, `shm_size: '12g'`,
    # `food11:/mnt`, `driver: "nvidia"`, `device_ids: ["0"]`. Cores: reference-repository 5da0590, 2026-06-26.
    "chameleon-a100-pcie.ray.sh": ("chameleon-a100-pcie", "--gpus 4 --bind food11:/mnt"),
    "chameleon-gigaio.ray.sh": ("chameleon-gigaio", ""),
    "chameleon-h100.ray.sh": ("chameleon-h100", "--gpus 4 --checkpoint s3://ray/run"),
    "chameleon-h100-vm.ray.sh": ("chameleon-h100-vm", "--checkpoint checkpoints"),
    # Switched off: docs.alliancecan.ca/wiki/Infrastructure_renewal (2026-04-10). The requests are of
    # 2019.
    "alliance-cedar.gpu.sh": ("alliance-cedar", "--account def-someuser"),
    "alliance-graham.gpu.sh": ("alliance-graham", "--account def-someuser"),
    "alliance-beluga.gpu.sh": ("alliance-beluga", "--account def-someuser"),
    # docs.alliancecan.ca/wiki: Fir (2026-07-24), Using_GPUs_with_Slurm (2026-04-03), Running_jobs
    # (arrays), Apptainer (2026-02-06).
    "alliance-fir.chain.sh": ("alliance-fir", "--account def-someuser --data set.tar --chain 7"),
    # docs.alliancecan.ca/wiki: Nibi (2026-06-26), "Ratios in bundles" (2025-09-26).
    "alliance-nibi.node.sh": ("alliance-nibi", "--account def-someuser --gpus 8"),
    # docs.alliancecan.ca/wiki: Rorqual (2026-04-03), "Ratios in bundles" (2025-09-26).
    "alliance-rorqual.gpu.sh": ("alliance-rorqual", "--account def-someuser --gpus 2"),
    # docs.alliancecan.ca/wiki: Narval (2026-04-17), "Ratios in bundles" (2025-09-26).
    "alliance-narval.nodes.sh": ("alliance-narval", "--account def-someuser --nodes 2 --time 0-12:00"),
    **newer.SCRIPTS,
}


INTERACTIVE = {
    # Synapse docs/source/ml-training.md (2026-07).
    "perlmutter.salloc.txt": ("perlmutter", "--account PROJECT --interactive"),
    # As users of several GPUs: a task for each, and no --gpu-bind, so that each process sees all
    # (2026).
    "perlmutter.salloc4.txt": ("perlmutter", "--account PROJECT --interactive --gpus 4"),
    # Lumi-supercomputer/lumi-userguide docs/runjobs/scheduled-jobs/interactive.md: the shell stays on
    # the login node.
    "lumi-g.salloc.txt": ("lumi-g", "--account project_465000000 --interactive"),
    # archer2-docs docs/user-guide/scheduler.md (2026-04-13): QOS short.
    "archer2-cpu.salloc.txt": ("archer2-cpu", "--account z19 --interactive"),
    # docs.alliancecan.ca/wiki: Running_jobs and Nibi (2026-06-26).
    "alliance-nibi.salloc.txt": ("alliance-nibi", "--account def-someuser --interactive"),
    **newer.INTERACTIVE,
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
