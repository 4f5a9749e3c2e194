"""Work in threads."""

from __future__ import annotations

import threading

import pytest

from builder.core.errors import RegistryError
from builder.core.parallel import Stopped, in_parallel


def test_first_failure_stops_the_rest() -> None:
    """The first failure stops the work that runs, and the rest does not begin."""
    stop = threading.Event()
    begun, stopped = [], []

    def work(n: int) -> int:
        begun.append(n)
        if n == 0:
            raise RegistryError("first")
        stopped.append(stop.wait(120))
        raise Stopped

    with pytest.raises(RegistryError, match="first"):
        in_parallel(work, range(50), 4, stop)
    assert all(stopped) and len(begun) < 50


def test_no_workers() -> None:
    """A thread works in any case."""
    assert in_parallel(str, [1, 2], 0) == [(1, "1"), (2, "2")]


def test_first_of_several_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure is raised, not any one of those that the main thread finds when it wakes up."""
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (start(self), self.join()))

    def work(n: int) -> None:
        raise RegistryError(f"failure {n}")

    for _ in range(10):
        with pytest.raises(RegistryError, match="failure 0"):
            in_parallel(work, range(8), 1)
