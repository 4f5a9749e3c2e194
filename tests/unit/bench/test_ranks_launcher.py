"""The launcher's loop, with a pipe instead of a rank."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.options import parse
from builder.bench.ranks import launcher as module
from builder.bench.ranks.child import Lines, Process, encode
from builder.bench.ranks.launcher import Launcher
from builder.bench.ranks.plan import Launch


def launcher_of(pipe: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """A launcher whose only rank is the reading end of a pipe."""
    made = Launcher(
        parse(["--stall", "10", "--start-stall", "10", "--timeout", "5000"]), Launch(), str(tmp_path)
    )

    def start() -> None:
        made.ranks[0].connect("n0")
        made.steps[0] = "start"
        read = partial(made._read_rank, 0, Process(0, pipe, -1), Lines())
        made.selector.register(pipe, 1, read)

    monkeypatch.setattr(made, "start_ranks", start)
    return made


def stop_once(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The clock jumps at the launcher's second look, as if it had been stopped (Ctrl-Z, a frozen cgroup)."""
    looks: list[float] = []

    def monotonic() -> float:
        looks.append(time.monotonic())
        return looks[-1] + (seconds if len(looks) > 1 else 0.0)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))


def test_launcher_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that waited while the launcher was stopped count: their rank does not hang."""
    events: list[Any] = [{"begin": "matmul.fp32"}, {"begin": "attention"}, {"end": True}]
    read, write = os.pipe()
    os.write(write, b"".join(encode(event) for event in events))
    stop_once(monkeypatch, 1000.0)
    made = launcher_of(read, tmp_path, monkeypatch)
    made.run()
    os.close(write)
    assert made.watchdog.findings == [] and made.ranks[0].step == "attention"
