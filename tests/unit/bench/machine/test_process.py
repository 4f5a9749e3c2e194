"""Programs with a time limit."""

from __future__ import annotations

import os
import sys
import tempfile

from builder.bench.measurements.command import run_limited
from tests.support.waiting import alive, until


def test_nothing_is_left() -> None:
    """What the program started is ended with it."""
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    program = f"import subprocess; print(subprocess.Popen({child!r}).pid, flush=True)"
    with tempfile.TemporaryFile() as output:
        assert run_limited([sys.executable, "-c", program], output, 120, os.environ) == 0
        output.seek(0)
        pid = int(output.read())
    until(lambda: not alive(pid))


def test_time_limit() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with tempfile.TemporaryFile() as output:
        assert run_limited(command, output, 0.2, os.environ) is None
