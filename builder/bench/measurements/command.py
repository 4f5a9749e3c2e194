"""The recipe's own test: a program whose exit code decides."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import IO, Mapping, Sequence

from ..core import Item, Run, fail, skip
from .accuracy import checked
from .timing import spread

#: Lines and characters of its output that the report keeps.
_LINES, _CHARACTERS = 20, 4000
#: Lines that a message shows.
_SHOWN = 3


def measure_command(run: Run) -> Item:
    """Run the recipe's test to its end; anything but exit code 0 is a failure."""
    command: list[str] = run.options.command
    if not command:
        raise skip("the recipe has no test of its own")
    limit_s = run.options.command_timeout
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        try:
            # both outputs in the order of their lines
            code = run_limited(command, output, limit_s, {"PYTHONUNBUFFERED": "1", **os.environ})
        except OSError as e:
            advice = "correct 'smoke.command' in the recipe, or add the program to the image"
            raise fail(f"{command[0]} cannot be started: {e.strerror}", advice) from None
        lines = last_lines(output)
    seconds = time.perf_counter() - started
    if code is None:
        seen = f"did not end within {limit_s:g} s: {_shown(lines)}"
        raise fail(seen, "correct the test, or allow more time: 'smoke.timeout'", output=lines)
    if code:
        seen = f"exit code {code}: {_shown(lines)}"
        advice = "the recipe's own test failed: see its last lines"
        raise fail(seen, advice, exit_code=code, output=lines)
    check = checked("exit code", code, 0, code == 0)
    fields: Item = {"exit_code": code, "output": lines, "seen": f"exit code 0 in {seconds:.1f} s"}
    return {**spread("s", [seconds]), "better": "lower", **fields, **check}


def last_lines(output: IO[bytes]) -> list[str]:
    """Return the last lines of a command's output."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _CHARACTERS))
    text = output.read().decode("utf-8", "replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-_LINES:]


def _shown(lines: list[str]) -> str:
    return " | ".join(lines[-_SHOWN:]) or "no output"


def run_limited(
    command: Sequence[str], output: IO[bytes], limit_s: float, variables: Mapping[str, str]
) -> int | None:
    """Run a program and return its exit code; None if it did not end within ``limit_s``.

    Afterwards all that it started and left behind is ended, too.

    Args:
        command: the program and its arguments.
        output: the file for both of its outputs.
        limit_s: seconds.
        variables: its whole environment.

    Raises:
        OSError: it cannot be started.
    """
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=nothing, stdout=output, stderr=output, start_new_session=True, env=variables
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
