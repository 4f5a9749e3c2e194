"""Running a program that may start others, and may not end."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import IO, Mapping, Sequence


def run_limited(
    command: Sequence[str], output: IO[bytes], limit_s: float, variables: Mapping[str, str]
) -> int | None:
    """Runs a program to its end and returns its exit code; None if it did not end within ``limit_s``.

    Afterwards all that it started and left behind is ended, too.

    Args:
        command: the program and its arguments.
        output: the file for both of its outputs.
        limit_s: seconds.
        variables: its whole environment.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env=variables,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        process.wait()
