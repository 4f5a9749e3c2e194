"""Commands run in this process, and helpers for tests of ``builder publish``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builder.cli.groups import command as publish_command
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from builder.formats.oci.layout import list_tags
from tests.support.documents import checked
from tests.support.project import TinyProject


@dataclass(frozen=True)
class Result:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output of ``--json``, checked with its schema."""
        return checked(json.loads(self.out))


Cli = Callable[..., Result]


def adopt(project: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the environment and working folder of this process to the project's."""
    for name in os.environ.keys() - project.variables().keys():
        monkeypatch.delenv(name)
    for name, value in project.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.root)


def pass_smoke(project: TinyProject, digest: str) -> None:
    """Records that the smoke test passed on this machine: the small image contains no Python."""
    SmokeRecord(project.cache).update(SmokeReport("pass", {}, "userns", digest, 0.0))


def ask(project: TinyProject, args: list[str], answers: str = "") -> Any:
    """Runs ``publish.py`` with these answers to its questions."""
    return CliRunner().invoke(publish_command(project.root), args, input=answers, catch_exceptions=False)


def tags(layout: Path) -> dict[str, str]:
    """The tags of a layout and their digests."""
    return list_tags(layout)
