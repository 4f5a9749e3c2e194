"""The commands of the benchmark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from benchmarks.project import Project
from builder.cli import cli


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project.__new__(Project)
    made.root = tmp_path
    made.registry = SimpleNamespace(host="127.0.0.1:5000")  # type: ignore[assignment]
    return made


def test_options_exist(project: Project) -> None:
    """make bench runs for long before an option that builder no longer has ends it."""
    for words in (
        project.publish_command("bench"),
        project.command("lock", "bench"),
        project.command("build"),
    ):
        name, *rest = words[words.index("--project") + 2 :]
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and command.make_context(name, rest)
