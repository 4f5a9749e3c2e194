"""What another user of the machine has made in a folder above that of the user."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from builder.core.settings import project_root
from tests.support.cli import Cli
from tests.support.parts import need_root
from tests.support.ports import free_ports
from tests.support.project import TinyProject

STRANGER = 12345


@pytest.fixture
def below(copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user is in: below a folder with ``recipes/``."""
    folder = copy.root / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.root
@pytest.mark.parametrize("owned", ["recipes", "."])
def test_recipes(do: Cli, copy: TinyProject, below: Path, owned: str) -> None:
    """They are no project, and the hint is the line to type."""
    need_root()
    assert do("build").code == 0
    os.chown(copy.root / owned, STRANGER, STRANGER)
    for command in (["build"], ["run", "--", "true"], ["job", "--", "true"], ["targets"]):
        refused = do(*command)
        assert refused.code == 3 and f"{copy.root} is another user's project" in refused.err
    line = refused.err.partition("builder --project ")[2].partition(" ...;")[0]
    assert do("--project", *shlex.split(line), "build").code == 0


@pytest.mark.root
def test_link(copy: TinyProject, below: Path) -> None:
    """Neither the link of another user counts, nor a link to another user's folder."""
    need_root()
    recipes = copy.root / "recipes"
    recipes.rename(copy.root / "other")
    recipes.symlink_to("other")
    assert project_root(below) == copy.root
    os.lchown(recipes, STRANGER, STRANGER)
    assert project_root(below) is None
    os.lchown(recipes, 0, 0)
    os.chown(copy.root / "other", STRANGER, STRANGER)
    assert project_root(below) is None


@pytest.mark.root
def test_own_folder(copy: TinyProject, below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project counts in its own folder, and for root that of the user who called sudo."""
    need_root()
    os.chown(copy.root / "recipes", STRANGER, STRANGER)
    assert project_root(copy.root) == copy.root and project_root(below) is None
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert project_root(below) == copy.root
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert project_root(below) is None


@pytest.mark.root
def test_image_without_project(do: Cli, copy: TinyProject, below: Path) -> None:
    """Commands that need no project go on: nobody can stop them by a folder in /tmp."""
    need_root()
    os.chown(copy.root / "recipes", STRANGER, STRANGER)
    (port,) = free_ports(1)
    refused = do("pull", f"127.0.0.1:{port}/me/image:1")
    assert refused.code == 9 and "refuses connections" in refused.err
