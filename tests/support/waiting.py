"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(reached: Callable[[], object], patience_s: float = 120) -> None:
    """Polls until ``reached`` returns something true; fails after ``patience_s`` seconds.

    For servers, :func:`tests.support.parts.wait_for` also notices that their process has ended.
    """
    end = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < end, f"not within {patience_s:g} s"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs: it exists, and does not only wait for init to collect it."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
