"""``builder ci``."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.cli import Cli
from tests.support.project import TinyProject, edit

ROOT = Path(__file__).parents[3]
INSTALL = ("--install", "git+https://git.example/o/builder@v1")


def test_github(do: Cli, tiny: TinyProject) -> None:
    """The file is written once, and its first line writes it again."""
    edit(tiny.recipe, conda={"exclude_newer": "2026-11-01"})
    made = do("ci", "github", *INSTALL)
    path = tiny.root / ".github/workflows/images.yml"
    assert made.code == 0 and str(path) in made.out
    assert "exclude_newer of tiny is a fixed date" in made.err and "exclude_newer: month" in made.err
    text = path.read_text()
    command = shlex.split(text.splitlines()[0].removeprefix("# Written by: builder "))
    assert do(*command).code == 0 and do(*command, "--stdout").out == text
    path.write_text(text + "# mine\n")
    refused = do(*command)
    assert refused.code == 2 and "exists and differs" in refused.err
    assert do(*command, "--force").code == 0 and path.read_text() == text


def test_gitlab(do: Cli, tiny: TinyProject) -> None:
    edit(tiny.recipe, conda={"exclude_newer": "month"})
    made = do("ci", "gitlab", *INSTALL, "--output", "mine.yml", "--json")
    assert made.code == 0 and "fixed date" not in made.err
    assert made.json["targets"] == ["tiny"] and Path("mine.yml").read_text() == made.json["text"]
    assert "publish" in yaml.safe_load(made.json["text"])


def test_folder_of_a_repository(do: Cli, tiny: TinyProject) -> None:
    """The services look at the top of a repository only."""
    subprocess.run(["git", "init", "--quiet", str(tiny.root)], check=True)
    assert "counts there only" not in do("ci", "github", *INSTALL).err
    (tiny.root / ".git").rename(tiny.root.parent / ".git")
    assert "its commands have to run in project" in do("ci", "github", *INSTALL).err


def test_unknown_source(do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a place that a workflow can install from, nothing is written."""
    monkeypatch.setattr("builder.ci.install._direct_url", lambda: {"url": "file:///x", "dir_info": {}})
    monkeypatch.setattr("builder.ci.install.repository", lambda: "")
    result = do("ci", "github")
    assert result.code == 2 and "--install" in result.err and not (tiny.root / ".github").exists()


def test_own_workflow(do: Cli) -> None:
    """.github/workflows/publish.yml is what its first line writes."""
    path = ROOT / ".github/workflows/publish.yml"
    first = re.match(r"# Written by: builder (.*)\n", path.read_text())
    assert first, "write it with builder ci github"
    made = do("--project", ROOT, *shlex.split(first[1]), "--stdout")
    assert made.code == 0 and made.out == path.read_text(), (
        "publish.yml is stale: change builder/ci/templates/github.yml.j2, then run its first line with "
        "--output .github/workflows/publish.yml --force"
    )
