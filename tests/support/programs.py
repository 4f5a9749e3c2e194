"""Runs programs that tests need to succeed."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def run_program(
    command: Sequence[str | Path],
    env: Mapping[str, str],
    *,
    check: bool = True,
    stdin: str | None = None,
    cwd: Path | str | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program; with ``check``, a failure fails the test with the program's output.

    Args:
        command: the program and its arguments.
        env: the whole environment.
        check: whether a failure fails the test.
        stdin: what it reads; None: what the tests read.
        cwd: where it starts; None: where the tests run.
        timeout: seconds.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=env, input=stdin, cwd=cwd, timeout=timeout, capture_output=True, text=True
    )
    if check and done.returncode:
        pytest.fail(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done
