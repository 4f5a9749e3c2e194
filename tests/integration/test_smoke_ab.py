"""Two real images in turn, on this host and in one job of a real Slurm. The benchmark is a stand-in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from builder.cli import cli, run
from builder.deliver.smoke import abrun
from tests.integration.conftest import Builder, keep_base
from tests.integration.test_smoke_kinds import SITE, own_project
from tests.support.documents import checked
from tests.support.project import edit
from tests.support.slurm import Slurm
from tests.support.standin_benchmark import standin_benchmark


@pytest.fixture(scope="module")
def project(base_cache: Path, module_folder: Path) -> Builder:
    """A project whose build is 20 % slower than the image in the folder ``old``."""
    root = module_folder / "project"
    own = own_project(keep_base(base_cache, module_folder / "cache"), root, "pyyaml")
    edit(root / "recipes/own.yaml", env={"SPEED": "1.0"}, smoke={"framework": "torch"})
    own.run("build", "own")
    shutil.copytree(root / "dist", root / "old")
    edit(root / "recipes" / "own.yaml", env={"SPEED": "0.8"}, site=SITE)
    return own


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abrun, "smoke_program", standin_benchmark)


def compared(
    project: Builder, capsys: pytest.CaptureFixture[str], *arguments: str, code: int
) -> tuple[Any, str]:
    """What ``builder smoke own --ab ARGUMENTS --json`` prints, and its messages."""
    capsys.readouterr()
    words = ["--project", str(project.root), "--cache", str(project.cache), "smoke", "own", "--ab"]
    got = run(cli, [*words, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert got == code, (got, out, err)
    return checked(json.loads(out)), err


def options_of(path: str) -> str:
    """The options that the benchmark of a stored report got."""
    return str(json.loads(Path(path).read_text())["probes"][0]["seen"])


def check_slower(out: Any) -> None:
    """The build is slower in all figures; each run has its report."""
    assert out["verdict"] == "slower" and out["rounds"] == 3, out
    assert {figure["outcome"] for figure in out["figures"]} == {"slower"}
    assert all(figure["ratio"] == pytest.approx(0.8) for figure in out["figures"])
    runs = [(json.loads(Path(path).read_text())["image"]["digest"], options_of(path)) for path in out["runs"]]
    old, new = out["old"]["digest"], out["new"]["digest"]
    assert [digest for digest, _ in runs] == [old, new, *[old, new, new, old] * 3] and old != new
    assert ["--device-only" in options for _, options in runs] == [False] * 2 + [True] * 12


def test_on_this_host(project: Builder, standin: None, capsys: pytest.CaptureFixture[str]) -> None:
    old = f"oci:{project.root / 'old'}:own"
    out, err = compared(project, capsys, old, "build", "--runner", "userns", code=11)
    check_slower(out)
    assert "round 3 of 3" in err


@pytest.mark.heavy
def test_in_one_job(
    project: Builder,
    standin: None,
    slurm: Slurm,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One job runs all, and nothing is left of it but reports."""
    for name, value in {**slurm.env, "USER": "tester", "BUILDER_CACHE": str(project.cache)}.items():
        monkeypatch.setenv(name, value)
    folder = project.root / "reports" / "own"
    before = set(folder.glob("*"))
    old = f"oci:{project.root / 'old'}:own"
    out, err = compared(project, capsys, old, "build", "--on", "slurm", code=11)
    check_slower(out)
    assert out["runner"] == "slurm (userns)" and err.count(": job ") == 1
    assert {str(path) for path in set(folder.glob("*")) - before} == set(out["runs"])
