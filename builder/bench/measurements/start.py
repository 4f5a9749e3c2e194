"""Measurements of the start-up: the time that every job needs before its first result."""

from __future__ import annotations

import subprocess
import sys
import time

from ..core import Item, Run, fail, skip
from .accuracy import checked
from .timing import spread

#: Prints seconds of the import, seconds of the first kernel, its result, torch's version.
STARTER = """
import sys, time
started = time.perf_counter()
import torch
imported = time.perf_counter()
x = torch.full((64, 64), 2.0, device=sys.argv[1])
total = (x @ x).sum().item()
print()
print(imported - started, time.perf_counter() - imported, total, torch.__version__)
"""


def measure_import(run: Run) -> Item:
    """Importing torch in new processes. ``first_s`` is the import in this process."""
    version = str(run.need_torch.__version__)
    starts = _starts(run)
    found = starts[-1][3]
    check = checked("a new process imports the same version", found, version, found == version)
    return {
        **spread("s", [start[0] for start in starts]),
        "better": "lower",
        "first_s": run.import_s,
        **check,
    }


def measure_first_kernel(run: Run) -> Item:
    """From the end of the import to the device's first result: the start of driver and libraries."""
    if run.torch is None:
        raise skip("no torch")
    device = run.device
    starts = _starts(run)
    total, expected = starts[-1][2], 64.0**3 * 4
    check = checked("sum of the first product", total, expected, total == expected)
    return {**spread("s", [start[1] for start in starts]), "better": "lower", "device": device, **check}


def _starts(run: Run) -> list[tuple[float, float, float, str]]:
    """Up to three starts of torch in new processes; both measurements use the same ones."""
    if not run.starts:
        began, limit_s = time.monotonic(), run.share(8.0)
        run.starts.append(_start(run))
        # As many as fit, if each takes as long as those before.
        while len(run.starts) < 3 and _expected_end(began, len(run.starts)) < limit_s:
            run.starts.append(_start(run))
    return run.starts


def _expected_end(began: float, done: int) -> float:
    """Seconds from the beginning to the end of one more start."""
    return (time.monotonic() - began) * (done + 1) / done


def _start(run: Run) -> tuple[float, float, float, str]:
    command = [sys.executable, "-c", STARTER, run.device]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode or len(words) < 4:
        seen = f"torch imports in this process, but fails in a new one (exit code {done.returncode})"
        advice = (
            "check what differs in a new process: memory, limits, variables; "
            "a GPU in exclusive mode allows one process only"
        )
        raise fail(seen, advice)
    return float(words[-4]), float(words[-3]), float(words[-2]), words[-1]
