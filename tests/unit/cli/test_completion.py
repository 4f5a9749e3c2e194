"""Completion: the scripts that click writes for shells, and what they offer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import TinyProject

CLONE = Path(__file__).parents[3]


def completed(tiny: TinyProject, env: dict[str, str]) -> str:
    """Returns what builder prints for a shell."""
    done = subprocess.run(
        [sys.executable, "-m", "builder"],
        env={**tiny.variables(), **env, "PYTHONPATH": str(CLONE)},
        cwd=tiny.root,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(tiny: TinyProject, shell: str) -> None:
    """The line of docs/cli.md, for a program of the name that is installed."""
    script = completed(tiny, {"_BUILDER_COMPLETE": f"{shell}_source"})
    assert "_BUILDER_COMPLETE" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("builder bu", {"build"}),
        ("builder build t", {"tiny", "tinier"}),
        ("builder targets tini", {"tinier"}),
        ("builder init --site pe", {"perlmutter"}),
    ],
)
def test_bash_completion(tiny: TinyProject, words: str, offered: set[str]) -> None:
    (tiny.root / "recipes" / "tinier.yaml").write_text("extends: tiny\n")
    env = {
        "_BUILDER_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    assert {line.partition(",")[2] for line in completed(tiny, env).splitlines()} == offered
