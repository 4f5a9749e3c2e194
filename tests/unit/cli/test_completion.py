"""``builder help completion``: scripts for shells, and what they offer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.project import TinyProject

CLONE = Path(__file__).parents[3]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(do: Cli, tiny: TinyProject, shell: str) -> None:
    result = do("help", "completion", shell)
    assert result.code == 0 and "_BUILDER_COMPLETE" in result.out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=result.out, text=True, check=True)


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
    done = subprocess.run(
        [sys.executable, "-m", "builder"],
        env={**tiny.variables(), **env, "PYTHONPATH": str(CLONE)},
        cwd=tiny.root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered
