"""The end of the process: the exit code holds, whatever the threads of native libraries do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[3]
#: Ends with code 5 while an atexit function, a temporary folder and a thread still have something to do.
PROGRAM = """
import atexit, sys, tempfile, threading, time, types
from builder.cli.leave import leave

if {native}:
    sys.modules["rattler"] = types.ModuleType("rattler")
class Object:
    def __del__(self):
        sys.stderr.write("destroyed ")
held = Object()
folder = tempfile.TemporaryDirectory(dir=sys.argv[1])
printed = threading.Event()
threading.Thread(target=lambda: (printed.wait(), time.sleep(0.05), print("thread"))).start()
atexit.register(print, "atexit")
print("printed", end=" ")
printed.set()
leave(5)
"""


def left(tmp_path: Path, native: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(native=native), str(tmp_path)],
        cwd=CLONE,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("native", [False, True])
def test_everything_is_done(tmp_path: Path, native: bool) -> None:
    """With and without such a library: output, threads, atexit functions, temporary folders, exit code."""
    done = left(tmp_path, native)
    assert done.returncode == 5 and done.stdout == "printed thread\natexit\n"
    assert list(tmp_path.iterdir()) == []
