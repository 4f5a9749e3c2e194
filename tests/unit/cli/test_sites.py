"""``builder sites`` and ``builder help schema`` as commands."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.lock.config.sites import PACKAGE_FOLDER
from tests.support.documents import checked


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in that is in no project (tmp_path may be)."""
    monkeypatch.setenv("BUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    with tempfile.TemporaryDirectory(prefix="bt-", dir="/var/tmp") as folder:
        monkeypatch.chdir(folder)
        yield Path(folder)
        monkeypatch.undo()


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """Sites are listed outside of a project too."""
    assert run(cli, ["sites"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("lumi-g "))
    assert line.split()[:5] == ["lumi-g", "singularity", "8x", "amd", "gfx90a"]


def test_list_of_a_project(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    """A broken file is a warning, and the others are listed."""
    for folder in ("recipes", "sites"):
        (empty_folder / folder).mkdir()
    (empty_folder / "sites/broken.yaml").write_text("sit: x\n")
    (empty_folder / "sites/lumi-g.yaml").write_text("extends: _linux\nsite: {launcher: torchrun}\n")
    assert run(cli, ["sites"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (mine,) = (line for line in lines if line.startswith("lumi-g "))
    assert mine.endswith(" (project)")
    assert run(cli, ["sites", "--json"]) == 0
    captured = capsys.readouterr()
    assert "broken.yaml:1: sit: not a key of a site file" in captured.err
    origins = {row["name"]: row["from"] for row in checked(json.loads(captured.out))}
    assert (origins["lumi-g"], origins["perlmutter"]) == ("project", "package")


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    """The file as it is on stdout, its path on stderr; as JSON with what it extends."""
    assert run(cli, ["sites", "show", "lumi-g"]) == 0
    captured = capsys.readouterr()
    path = PACKAGE_FOLDER / "lumi-g.yaml"
    assert captured.out == path.read_text() and str(path) in captured.err
    assert "builder sites show _singularity" in captured.err
    assert run(cli, ["sites", "show", "lumi-g", "--json"]) == 0
    shown = checked(json.loads(capsys.readouterr().out))
    assert shown["site"]["runtime"]["clean_env"] is True and shown["from"] == "package"
    assert run(cli, ["sites", "show", "lumi"]) == 3
    assert "did you mean lumi-g?" in capsys.readouterr().err


def test_new(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    """In an empty folder; the commands that it names work."""
    arguments = ["sites", "new", "mine", "--runtime", "docker", "--gpu", "amd"]
    assert run(cli, arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(empty_folder / "sites/mine.yaml")
    shown = "builder sites show mine --json"
    assert shown in " ".join(captured.err.split()) and run(cli, shown.split()[1:]) == 0
    site = checked(json.loads(capsys.readouterr().out))
    assert site["site"]["runtime"]["kind"] == "docker" and site["gpu"]["vendor"] == "amd"
    assert run(cli, arguments) == 2 and "site mine exists already" in capsys.readouterr().err
