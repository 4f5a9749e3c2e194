"""The workflows of ``examples/ci`` and our own: valid YAML, valid shell, and commands that builder has."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from builder.cli import cli

ROOT = Path(__file__).parents[2]
FILES = ("examples/ci/github.yml", "examples/ci/gitlab.yml", ".github/workflows/publish.yml")


def scripts(node: Any) -> Iterator[str]:
    """Find the shell scripts of a workflow: ``run:`` of GitHub, ``script:`` of GitLab."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key in ("run", "script", "before_script"):
            yield value if isinstance(value, str) else "\n".join(value)
        elif isinstance(value, dict | list):
            yield from scripts(value)


@pytest.mark.parametrize("name", FILES)
def test_workflow(name: str) -> None:
    text = (ROOT / name).read_text()
    found = list(scripts(yaml.safe_load(text)))
    assert any("lock --changes" in s or "lock perlmutter" in s for s in found)
    for action in re.findall(r"uses: (\S+)", text):
        assert re.search(r"@[0-9a-f]{40}$", action), "actions are pinned by commit"
    for script in found:
        for words in re.findall(r"\.venv/bin/builder ([^|\n)]*)", script):
            check_command(shlex.split(words.replace('${ONLY:+--only "$ONLY"}', "--only latest")))
        if shutil.which("shellcheck"):
            command = ["shellcheck", "--shell=bash", "--exclude=SC2016,SC2086", "-"]
            subprocess.run(command, input=script, text=True, check=True)


def check_command(words: list[str]) -> None:
    """Fail if builder has no such command, or the command has no such option."""
    words = words[: words.index(">>")] if ">>" in words else words
    command: click.Command = cli
    while isinstance(command, click.Group):
        context = click.Context(command)
        name, command_found, words = command.resolve_command(context, words)
        assert command_found is not None, name
        command = command_found
    command.make_context(command.name, words)
