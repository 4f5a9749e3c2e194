"""Runs a solver or another tool that reads and writes locks."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.core.errors import BuilderError
from builder.core.limits import limited


def run_tool(
    command: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float, late: BuilderError
) -> subprocess.CompletedProcess[str]:
    """Run a command with limits in a folder, and return its exit code and output.

    Args:
        command: the program and its arguments.
        folder: the working folder.
        env: all its variables.
        limit_s: seconds after which it is killed.
        late: is then raised.
    """
    try:
        return subprocess.run(
            limited(*command), cwd=folder, env=env, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise late from None
