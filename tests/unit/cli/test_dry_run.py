"""The layers and sizes that a build will make."""

from __future__ import annotations

from typing import Any

import pytest

from builder.cli.context import Context
from builder.cli.dry_run import print_plan
from builder.cli.output import Output
from builder.settings import Settings
from tests.support.cli import Cli
from tests.support.project import TinyProject


def plan(project: TinyProject) -> dict[str, Any]:
    """The plan of target tiny."""
    context = Context(Output(), Settings.from_environment(), project.root)
    return print_plan(context, context.project.one_recipe("tiny"))


def test_unknown_sizes(
    copy: TinyProject, do: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Archives of unknown size are counted in a warning."""
    monkeypatch.setenv("BUILDER_CACHE", str(copy.root / "empty"))
    monkeypatch.setenv("BUILDER_OFFLINE", "1")
    assert plan(copy)["unknown_sizes"] == 9, "the wheel lies in its folder"
    printed = capsys.readouterr()
    assert "10 packages in" in printed.out and "9 archives have an unknown size" in printed.err
