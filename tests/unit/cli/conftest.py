"""A small project, and its locked and built copies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.cli.logs import stop_logging
from tests.support.channel import Server, serve
from tests.support.cli import Cli, Result, adopt
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project
from tests.support.reports import a100
from tests.support.smoke_project import SmokeProject


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    """The channel's folder, and the server of it."""
    folder = tiny_channel(tmp_path_factory.mktemp("channel"))
    with serve(folder) as server:
        yield folder, server


@pytest.fixture
def tiny(tmp_path: Path, served: tuple[Path, Server], monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """A project that is not locked yet; this process is in it."""
    project = tiny_project(tmp_path, served[1].url)
    adopt(project, monkeypatch)
    return project


@pytest.fixture
def do(capsys: pytest.CaptureFixture[str]) -> Cli:
    """``do("build", "tiny")`` runs a command in this process."""

    def do(*args: str | Path) -> Result:
        code = run(cli, [str(a) for a in args])
        out, err = capsys.readouterr()
        stop_logging()  # what a test then calls itself is not the command's
        return Result(code, out, err)

    return do


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, served: tuple[Path, Server]) -> TinyProject:
    """The project, locked and built once; tests take a :func:`copy`."""
    project = tiny_project(tmp_path_factory.mktemp("built"), served[1].url)
    with pytest.MonkeyPatch.context() as monkeypatch:
        adopt(project, monkeypatch)
        assert run(cli, ["build", "tiny"]) == 0
    return project


@pytest.fixture
def copy(built: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """A locked and built project of the test's own; this process is in it."""
    project = TinyProject(tmp_path / "project", tmp_path / "cache")
    shutil.copytree(built.root, project.root, symlinks=True)
    shutil.copytree(built.cache, project.cache)
    adopt(project, monkeypatch)
    return project


@pytest.fixture
def three(copy: TinyProject) -> TinyProject:
    """Two more targets: ``broken``, the first by name, which cannot be solved, and ``zwei``, as ``tiny``."""
    recipes, environments = copy.recipe.parent, copy.environment.parent
    shutil.copy(copy.environment, environments / "broken.yml")
    edit(environments / "broken.yml", dependencies=["greeter>=2"])
    for name, environment in (("broken", "broken"), ("zwei", "tiny")):
        shutil.copy(copy.recipe, recipes / f"{name}.yaml")
        edit(
            recipes / f"{name}.yaml",
            environment=f"environments/{environment}.yml",
            registry={"repository": name},
            group=["ml"],
        )
    return copy


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> SmokeProject:
    """A project whose smoke tests answer with the report of an A100."""
    made = SmokeProject(tmp_path, monkeypatch, capsys)
    made.answers = [a100(seed=7)]
    return made
