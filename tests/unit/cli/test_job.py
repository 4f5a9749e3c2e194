"""``builder job`` and ``builder run --print`` as commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.cli import cli, run

ROOT = Path(__file__).parents[3]


def builder(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    """Runs builder and returns its standard output, or after a failure its standard error."""
    assert run(cli, ["--project", str(ROOT), *args]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_script_file_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--output`` writes an executable script; ``--json`` contains the same text."""
    file = tmp_path / "job.sh"
    options = ["--account", "project_465000000", "--output", str(file), "--json"]
    data = json.loads(builder(capsys, "job", "lumi-g", *options, "--", "python", "t.py"))
    assert file.read_text() == data["script"] and os.access(file, os.X_OK) and data["job"] is None


def test_what_to_do_with_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no scheduler it is run."""
    file = tmp_path / "job.sh"
    for target, advice in (("alps-daint", "submit it with: sbatch"), ("chameleon-a100", "run it with: bash")):
        assert run(cli, ["--project", str(ROOT), "job", target, "--output", str(file), "--", "y"]) == 0
        assert f"{advice} {file}" in capsys.readouterr().err


def test_output_folder_must_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--account", "project_465000000", "--output", f"{tmp_path}/no/x"]
    assert "does not exist" in builder(capsys, "job", "lumi-g", *options, "--", "y", code=2)


def test_printed_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    printed = json.loads(builder(capsys, "run", "lumi-g", "--print", "--json", "--", "a b"))
    assert printed["command"][-1] == "a b" and printed["shell"].endswith("'a b'")


def test_errors_have_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    error = builder(
        capsys, "job", "lumi-g", "--chain", "0", "--account", "project_465000000", "--", "y", code=2
    )
    assert "--chain must be at least 1, not 0" in error
    error = builder(capsys, "job", "chameleon-a100", "--submit", "--", "y", code=2)
    assert "has no scheduler to submit jobs to" in error
    error = builder(capsys, "run", "perlmutter", "--env", "A-B=1", "--", "y", code=2)
    assert "--env A-B: not a valid variable name" in error


def test_undecodable_word(capsys: pytest.CaptureFixture[str]) -> None:
    """A file name that is not UTF-8 is an error of the user's, not of the script's encoding."""
    assert run(cli, ["job", "cpu", "--", "python", "\udcff.py"]) == 2
    assert "'\\udcff.py' is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--submit"], ["--output", "x.sh"], ["--chain", "2"]])
def test_interactive_is_no_batch_job(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    """Options that would have no effect are refused, and no hint names one of them."""
    words = ["job", "alps-daint", "--interactive"]
    assert f"{option[0]} is for batch jobs" in builder(capsys, *words, *option, code=2)
    too_long = builder(capsys, *words, "--time", "1:00:00", code=2)
    assert "--partition normal allows it" in too_long and "--chain" not in too_long


def test_retired_site(capsys: pytest.CaptureFixture[str]) -> None:
    """The script can be written, with one warning that names the successor; it is not submitted."""
    words = ["--project", str(ROOT), "job", "alliance-cedar", "--account", "def-x"]
    assert run(cli, [*words, "--", "y"]) == 0
    captured = capsys.readouterr()
    assert (
        captured.out.startswith("#!/bin/bash") and captured.err.count("was switched off on 2025-09-12") == 1
    )
    assert "its successors: alliance-fir" in captured.err
    assert run(cli, [*words, "--submit", "--", "y"]) == 2
    assert "no job can be submitted" in capsys.readouterr().err
    assert run(cli, ["--project", str(ROOT), "lock", "alliance-cedar", "--check"]) == 4
    assert "its successors: alliance-fir" in capsys.readouterr().err
    assert run(cli, ["--project", str(ROOT), "targets", "--json"]) == 0
    status = {target["name"]: target["status"] for target in json.loads(capsys.readouterr().out)}
    assert status["alliance-cedar"] == "retired" and status["alliance-fir"] == "current"
