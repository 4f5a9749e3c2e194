"""The order of pulls and imports, and the program that imports in several processes at once.

A runtime that notes its calls stands in for docker.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import start
from benchmarks.measure import CommandFailed, Figures
from benchmarks.start_rows import StartImage

OURS = StartImage("ours", "h/ours:1", "h/ours:2")
THEIRS = StartImage("theirs", "h/theirs:1")


class NotedRuntime:
    """Notes its calls; runs the program of imports on this machine."""

    name = "noted"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def forget(self) -> None:
        self.calls.append("forget")

    def pull(self, meter: Any, reference: str) -> None:
        self.calls.append(f"pull {reference}")

    def python(self, meter: Any, reference: str, arguments: Sequence[str]) -> str:
        self.calls.append(f"run {reference}")
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandFailed(done.stderr)
        return done.stdout


class FixedMeter:
    """Measures every block as 4 seconds and 2 CPU seconds."""

    def __init__(self, group: object) -> None:
        self.figures: Figures | None = None

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        yield
        self.figures = Figures(4.0, 2.0, 0, 0)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> NotedRuntime:
    found = NotedRuntime()
    monkeypatch.setattr(start, "Meter", FixedMeter)
    monkeypatch.setattr(start, "drop_page_cache", lambda: bool(found.calls.append("drop") or True))
    return found


def plan(runtime: NotedRuntime, repetitions: int) -> start.Plan:
    group: Any = SimpleNamespace()
    return start.Plan(runtime, (OURS, THEIRS), group, repetitions, against="theirs")


def test_start_rows(runtime: NotedRuntime) -> None:
    """The second version is pulled while the first one is here; the page cache is empty before each
    pull.
    """
    rows = start.start_rows(plan(runtime, 2), "json")
    once = ["forget", "drop", "pull h/ours:1", "run h/ours:1", "drop", "pull h/ours:2", "run h/ours:2"]
    once += ["forget", "drop", "pull h/theirs:1", "run h/theirs:1"]
    assert runtime.calls == [*once, *once, "forget"]
    assert [(row.case, row.image, row.seconds, row.cpu) for row in rows] == [
        ("cold pull and start", "ours", [4.0, 4.0], [2.0, 2.0]),
        ("pull and start after a bump", "ours", [4.0, 4.0], [2.0, 2.0]),
        ("cold pull and start", "theirs", [4.0, 4.0], [2.0, 2.0]),
    ]
    assert all(len(row.pull_seconds) == 2 for row in rows)


def test_import_rows(runtime: NotedRuntime) -> None:
    """Each image is pulled once; the images take turns, and only cold runs empty the page cache."""
    rows = start.import_rows(plan(runtime, 2), "json", processes=(2,))
    assert [(row.case, row.image, len(row.seconds), len(row.cpu)) for row in rows] == [
        ("import, cold page cache, 2 processes at once", "ours", 2, 2),
        ("import, cold page cache, 2 processes at once", "theirs", 2, 2),
        ("import, warm page cache, 2 processes at once", "ours", 2, 2),
        ("import, warm page cache, 2 processes at once", "theirs", 2, 2),
    ]
    ours, theirs = "run h/ours:1", "run h/theirs:1"
    pulls = ["forget", "pull h/ours:1", ours, "pull h/theirs:1", theirs, "drop"]
    cold = ["drop", ours, "drop", theirs] * 2
    assert runtime.calls == [*pulls, *cold, ours, theirs, *[ours, theirs] * 2, "forget"]


def test_import_fails(runtime: NotedRuntime) -> None:
    """A process that cannot import fails the measurement."""
    with pytest.raises(CommandFailed, match="no_such_module"):
        start.import_rows(plan(runtime, 1), "no_such_module", processes=(2,))


def test_import_without_permission(runtime: NotedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is called cold if the page cache stays."""
    monkeypatch.setattr(start, "drop_page_cache", lambda: False)
    rows = start.import_rows(plan(runtime, 1), "json", processes=(1,))
    assert {row.case for row in rows} == {"import, warm page cache"}
