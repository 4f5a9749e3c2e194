"""``builder job`` and ``builder run --print`` as commands."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.core.model import Lock, LockedPackage
from builder.lock.config.recipe import load_recipe
from builder.lock.file import write_lock

ROOT = Path(__file__).parents[3]


def builder(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    """Runs builder and returns its standard output, or after a failure its standard error."""
    assert run(cli, ["--project", str(ROOT), *args]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_script_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--output`` writes an executable script."""
    file = tmp_path / "job.sh"
    options = ["--account", "project_465000000", "--output", str(file)]
    assert builder(capsys, "job", "lumi-g", *options, "--", "python", "t.py") == ""
    assert file.read_text().startswith("#!/bin/bash") and os.access(file, os.X_OK)


def test_errors_have_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--chain", "--nodes", "--tasks"):
        error = builder(capsys, "job", "lumi-g", option, "0", "--", "y", code=2)
        assert f"Invalid value for '{option}'" in error
    error = builder(capsys, "job", "chameleon-a100", "--submit", "--", "y", code=2)
    assert "has no scheduler to submit jobs to" in error
    error = builder(capsys, "run", "perlmutter", "--env", "A-B=1", "--", "y", code=2)
    assert "--env A-B: not a valid variable name" in error


@pytest.mark.parametrize("option", [["--submit"], ["--output", "x.sh"], ["--chain", "2"]])
def test_interactive_is_no_batch_job(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    """Options that would have no effect are refused, and no hint names one of them."""
    words = ["job", "alps-daint", "--interactive"]
    assert f"{option[0]} is for batch jobs" in builder(capsys, *words, *option, code=2)
    too_long = builder(capsys, *words, "--time", "1:00:00", code=2)
    assert "--partition normal allows it" in too_long and "--chain" not in too_long


SITE = """\
base: oci:base
environment: e.yml
site:
  title: Here
  runtime: {kind: apptainer}
  launcher: mpi
  slurm: {account: none}
  mpi: {abi: mpich}
"""


def test_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the image's packages do in the job is a warning, not an error; --image names another image."""
    (tmp_path / "recipes").mkdir()
    recipe = tmp_path / "recipes/t.yaml"
    recipe.write_text(SITE)
    words = ["--project", str(tmp_path), "job", "t"]
    assert run(cli, [*words, "--", "true"]) == 0 and not capsys.readouterr().err, "no lock yet"
    url, target = "https://conda.example/linux-64/mpich-4.3.2-h_0.conda", load_recipe("t", tmp_path)
    package = LockedPackage("mpich", "4.3.2", "conda", target.platform, url, "0" * 64)
    write_lock(Lock((package,), (target.platform,)), target.lock_path)
    assert run(cli, [*words, "--", "true"]) == 0
    assert "warning: the image has its own MPI, mpich 4.3.2, but jobs on Here" in capsys.readouterr().err
    assert run(cli, [*words, "--image", "x.sif", "--", "true"]) == 0 and not capsys.readouterr().err


def test_jobs_that_cannot_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped script is a warning: only the site knows; no command and no cmd: is an error."""
    (tmp_path / "recipes").mkdir()
    recipe = tmp_path / "recipes/t.yaml"
    recipe.write_text(SITE)
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["job", "--", "python", "trian.py"]) == 0
    assert capsys.readouterr().err == "", "this folder has no scripts"
    (tmp_path / "train.py").touch()
    assert run(cli, ["job", "--", "python", "trian.py"]) == 0
    written = capsys.readouterr()
    assert written.err == f"warning: {tmp_path} has no trian.py; did you mean train.py?\n"
    assert "python trian.py" in written.out
    assert run(cli, ["job"]) == 2
    assert capsys.readouterr().err == (
        "error: the job has no command, and t has no cmd:\n"
        f"  hint: builder job t -- python train.py; or write a cmd: into {recipe}\n"
    )
    assert run(cli, ["job", "--image", "x.sif"]) == run(cli, ["job", "--jupyter"]) == 0
    recipe.write_text(f"{SITE}cmd: [python, train.py]\n")
    assert run(cli, ["job"]) == 0 and "python train.py" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--", "t", "world"], ["t", "--", "t", "world"]])
def test_command_with_the_name_of_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A project, its target and its program often have one name."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/t.yaml").write_text(SITE)
    assert run(cli, ["--project", str(tmp_path), "job", *words]) == 0
    assert re.search(r" t world$", capsys.readouterr().out, re.MULTILINE)
