"""Output of ``builder run --print`` and ``builder job`` for each launcher and runtime, against golden files.

``BUILDER_GOLDEN=write pytest tests/unit/deliver/site/test_render.py`` writes the golden files. Check the
difference before committing it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.core.version import __version__
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.deliver.site.shell import command_line
from builder.lock.config.recipe import load_recipe, recipe_files
from builder.lock.environment import read_environment

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests" / "golden"
COMMAND = ["python", "train.py", "--note", 'it\'s "100 $" & more']


#: Golden file -> target and options of builder job. The comment above an entry names the text of the site
#: with which the file was compared, and the day of that text.
SCRIPTS = {
    "cpu.torchrun.sh": ("cpu", "--tasks 2 --launcher torchrun --checkpoint checkpoints"),
    # podman-hpc etc/modules.d/{mpich,nccl}.yaml (2026-04-24): both set LD_LIBRARY_PATH, and a -e of the
    # user wins.
    "perlmutter.mpi.sh": ("perlmutter", "--account m558 --nodes 2 --launcher mpi"),
    "perlmutter.jupyter.sh": ("perlmutter", "--account m558 --gpus 4 --jupyter"),
    # LUMI-AI-Guide 05-multi-gpu-and-node/run_ddp_srun_4.sh (2026-05), pull requests 97 (2026-05) and
    # 118 (2026-09).
    "lumi-g.nodes.sh": (
        "lumi-g",
        "--account project_465000000 --nodes 4 --data /scratch/project_465000000/set.tar",
    ),
    "chameleon-a100.torchrun.sh": ("chameleon-a100", "--gpus 2 --launcher torchrun"),
    # docs.alliancecan.ca/wiki: Fir (2026-07-24), Using_GPUs_with_Slurm (2026-04-03), Running_jobs
    # (arrays), Apptainer (2026-02-06).
    "alliance-fir.chain.sh": ("alliance-fir", "--account def-someuser --data set.tar --chain 7"),
    # docs.cscs.ch, software/ml/pytorch, 2026-02-23: "dist-train-ddp", with its environment definition file
    "alps-clariden.nodes.sh": ("alps-clariden", "--account g123 --nodes 2"),
    # docs.cscs.ch, tutorials/ml/llm-nanotron-training, 2025-08-22: "pretrain-nanotron"
    "alps-daint.torchrun.sh": (
        "alps-daint",
        "--account g123 --nodes 2 --launcher torchrun --time 00:45:00",
    ),
    # olcf_containers_examples frontier/sample_apps/pytorch/amdrocmregistry/submit.sbatch (2025-11-20) for the
    # modules; docs.olcf.ornl.gov, software/analytics/pytorch_frontier, 2026-07-07, for the variables
    "frontier.nodes.sh": ("frontier", "--account abc123 --nodes 2"),
    # docs.cirrus.ac.uk, user-guide/containers, 2025-11-15: "apptainer_parallel", with 8 processes a node
    "cirrus.mpi.sh": ("cirrus", "--account t01 --nodes 2 --time 0:10:0"),
    # titan-oellm d999abe, 2026-07-09: slurm/jupiter.sh, one node with torchrun
    "jupiter.torchrun.sh": ("jupiter", "--account jureap59 --launcher torchrun --time 1:00:00"),
}
INTERACTIVE = {
    # Synapse docs/source/ml-training.md (2026-07).
    "perlmutter.salloc.txt": ("perlmutter", "--account PROJECT --interactive"),
    # Lumi-supercomputer/lumi-userguide docs/runjobs/scheduled-jobs/interactive.md: the shell stays on
    # the login node.
    "lumi-g.salloc.txt": ("lumi-g", "--account project_465000000 --interactive"),
    # docs.cscs.ch, clusters/clariden, 2026-06-09: partition debug; software/container-engine/run: srun --pty
    "alps-clariden.salloc.txt": ("alps-clariden", "--interactive"),
}
#: Targets whose ``builder run --print`` is a golden file: one of each runtime.
TARGETS = ["alliance-fir", "alps-clariden", "chameleon-mi100", "cpu", "lumi-g", "perlmutter"]


def builder(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Runs builder, which must succeed, and returns its standard output."""
    code = run(cli, ["--project", str(ROOT), *args])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The day in scripts is that of the golden files, and no registry is asked for a digest."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795910400")
    monkeypatch.setenv("BUILDER_OFFLINE", "1")


def golden(name: str, text: str) -> None:
    """Compares a text with a golden file, or writes the file; its version of builder is no number."""
    path, text = GOLDEN / name, text.replace(f"builder {__version__}", "builder VERSION")
    if os.environ.get("BUILDER_GOLDEN") == "write":
        path.write_text(text)
    assert path.exists(), f"no {path}: BUILDER_GOLDEN=write pytest {__file__}"
    assert text == path.read_text()


@pytest.mark.parametrize("name", [*SCRIPTS, *INTERACTIVE])
def test_golden_jobs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    target, options = {**SCRIPTS, **INTERACTIVE}[name]
    command = [] if "--jupyter" in options else ["--", *COMMAND]
    golden(name, builder(capsys, "job", target, *options.split(), *command))


@pytest.mark.parametrize("target", TARGETS)
def test_golden_commands(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    golden(f"{target}.run.txt", builder(capsys, "run", target, "--print", "--", *COMMAND))


def test_golden_files_are_complete() -> None:
    """No golden file is unused."""
    names = {*SCRIPTS, *INTERACTIVE, *(f"{t}.run.txt" for t in TARGETS)}
    assert {p.name for p in GOLDEN.iterdir()} == names


@pytest.mark.parametrize("target", sorted(recipe_files(ROOT)))
def test_every_target(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every recipe has a job and a command line."""
    slurm = load_recipe(target, ROOT).site.slurm
    account = ["--account", slurm.account_example] if slurm and slurm.account_example else []
    assert "train.py" in builder(capsys, "job", target, *account, "--", *COMMAND)
    assert "train.py" in builder(capsys, "run", target, "--print", "--", *COMMAND)


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_shellcheck(name: str) -> None:
    """Scripts are valid bash, and shellcheck finds nothing."""
    subprocess.run(["bash", "-n", GOLDEN / name], check=True)
    if shutil.which("shellcheck") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("shellcheck is not installed")
        pytest.skip("shellcheck is not installed (make apt-test)")
    done = subprocess.run(
        # SC2329, since 0.11: functions that bash calls by a name in a variable
        ["shellcheck", "--shell=bash", "--severity=style", "--exclude=SC2329", GOLDEN / name],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("plugin", "said"), [("", 1), ("/sw/lib/librccl-net.so", 0)])
def test_frontier_without_plugin(plugin: str, said: int) -> None:
    """A job of several nodes says once that RCCL uses TCP."""
    (line,) = load_recipe("frontier", ROOT).site.fabric.setup
    assert (GOLDEN / "frontier.nodes.sh").read_text().count(line) == 1
    env = {"NCCL_NET_PLUGIN": plugin}
    done = subprocess.run(["bash", "-euc", line], env=env, capture_output=True, text=True, check=True)
    assert done.stderr.count("RCCL uses TCP between nodes") == said and not done.stdout


def test_own_setup(tmp_path: Path) -> None:
    """Lines of a recipe replace those of its site."""
    (tmp_path / "recipes").mkdir()
    text = 'site: {name: frontier, fabric: {setup: ["export A=1"]}}'
    (tmp_path / "recipes" / "mine.yaml").write_text(f"environment: e.yml\n{text}\n")
    fabric = load_recipe("mine", tmp_path).site.fabric
    assert fabric.setup == ("export A=1",) and "apptainer-enable-mpi" in fabric.modules


def test_printed_command_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """A shell reads the original words from the printed line."""
    line = builder(capsys, "run", "perlmutter", "--print", "--", *COMMAND).strip()
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\0")[-5:-1] == COMMAND
    assert command_line(["a", "$b"]) == 'a "\\$b"'


@pytest.mark.parametrize("target", sorted(recipe_files(ROOT / "examples/archer2")))
def test_archer2(target: str) -> None:
    """The recipes of a system that was switched off are examples: they are valid, and have a job."""
    recipe = load_recipe(target, ROOT / "examples/archer2")
    assert read_environment(recipe.environment_path, recipe.platform, recipe.root).requested
    assert render(plan_job(recipe, JobRequest(("python", "train.py"), account="z19")))
