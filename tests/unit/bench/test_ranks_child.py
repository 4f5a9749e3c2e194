"""How the end of a rank's process is described."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from builder.bench.ranks import child
from builder.bench.ranks.child import describe_death


def test_slow_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that needs long to return its memory is still described by its signal."""
    clock = [0.0]

    def wait(pid: int, options: int) -> tuple[int, int]:
        return (pid, signal.SIGBUS) if clock[0] > 20 else (0, 0)

    def sleep(seconds: float) -> None:
        clock[0] += 1.0

    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(os, "waitpid", wait)
    seen, advice = describe_death(1, "attention")
    assert seen == "the process was ended by SIGBUS in attention" and "--shm-size" in advice


def test_process_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a status nothing is invented."""
    clock = iter(range(1000))
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda s: None))
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (0, 0))
    seen, advice = describe_death(1, "attention")
    assert "closed its connection in attention" in seen and "exited" not in seen and "dmesg" in advice
