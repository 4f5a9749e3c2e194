"""Measurements of the start-up: the time that every job needs before its first result."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time

from ..core import Item, Run, fail, skip
from .accuracy import checked
from .timing import spread

_STARTER = """
import os, sys, time
started = time.perf_counter()
{imports}
imported = time.perf_counter()
{product}
print()
print(imported - started, time.perf_counter() - imported, total, {name}.__version__)
"""
#: Print seconds of the import, seconds of the first kernel, its result, the framework's version.
STARTERS = {
    "torch": _STARTER.format(
        name="torch",
        imports="import torch",
        product="x = torch.full((64, 64), 2.0, device=sys.argv[1])\ntotal = (x @ x).sum().item()",
    ),
    "tensorflow": _STARTER.format(
        name="tensorflow",
        imports="import tensorflow",
        product="x = tensorflow.fill((64, 64), 2.0)\ntotal = float(tensorflow.reduce_sum(x @ x).numpy())",
    ),
    "jax": _STARTER.format(
        name="jax",
        imports="import jax, jax.numpy",
        product="x = jax.numpy.full((64, 64), 2.0)\ntotal = float((x @ x).sum())",
    ),
}
_STARTS = 3
#: CUDA's message to a second process on a GPU in compute mode EXCLUSIVE_PROCESS.
_EXCLUSIVE = re.compile(rb"busy or unavailable")


def measure_python(run: Run) -> Item:
    """Starting the image's Python, from its start to its end."""
    samples, found = [], ""
    for _ in range(_STARTS):
        started = time.perf_counter()
        command = [sys.executable, "-c", "import platform; print(platform.python_version())"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        samples.append(time.perf_counter() - started)
        found = done.stdout.decode("utf-8", "replace").strip()
    expected = platform.python_version()
    check = checked("a new process has the same version", found, expected, found == expected)
    return {**spread("s", samples), "better": "lower", **check}


def measure_import(run: Run) -> Item:
    """Importing the framework in new processes. ``first_s`` is the import in this process."""
    if run.module is None:
        raise skip(f"no {run.options.framework}")
    version = str(run.module.__version__)
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
    if run.module is None:
        raise skip(f"no {run.options.framework}")
    device = run.device
    starts = _starts(run)
    if run.exclusive:
        raise skip("the GPU is in exclusive mode, and this process uses it: a second one may not")
    total, expected = starts[-1][2], 64.0**3 * 4
    check = checked("sum of the first product", total, expected, total == expected)
    return {**spread("s", [start[1] for start in starts]), "better": "lower", "device": device, **check}


def _starts(run: Run) -> list[tuple[float, float, float, str]]:
    """Up to three starts of the framework in new processes; both measurements use the same ones."""
    if not run.starts:
        began, limit_s = time.monotonic(), run.share(8.0)
        run.starts.append(_start(run))
        # As many as fit, if each takes as long as those before.
        while len(run.starts) < _STARTS and _expected_end(began, len(run.starts)) < limit_s:
            run.starts.append(_start(run))
    return run.starts


def _expected_end(began: float, done: int) -> float:
    """Seconds from the beginning to the end of one more start."""
    return (time.monotonic() - began) * (done + 1) / done


def _start(run: Run) -> tuple[float, float, float, str]:
    name = run.options.framework
    command = [sys.executable, "-c", STARTERS[name], "cpu" if run.exclusive else run.device]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode and not run.exclusive and _EXCLUSIVE.search(done.stderr):
        run.exclusive = True
        return _start(run)
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode or len(words) < 4:
        seen = f"{name} imports in this process, but fails in a new one (exit code {done.returncode})"
        raise fail(seen, "check what differs in a new process: memory, limits, variables")
    return float(words[-4]), float(words[-3]), float(words[-2]), words[-1]
