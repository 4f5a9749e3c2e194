"""The end of the process: the exit code holds, whatever the threads of native libraries do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).parents[3]
#: Ends with code 5 while an atexit function, a temporary folder and a thread still have something to do.
PROGRAM = """
import atexit, sys, tempfile, threading, time
from builder.cli.leave import leave

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


def test_everything_is_done(tmp_path: Path) -> None:
    """Output, threads, atexit functions, temporary folders, exit code; no object is destroyed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=CLONE, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "printed thread\natexit\n", "")
    assert list(tmp_path.iterdir()) == []
