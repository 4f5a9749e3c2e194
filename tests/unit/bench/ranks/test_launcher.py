"""The launcher's loop, with a connection instead of a rank."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.options import parse
from builder.bench.ranks import launcher as module
from builder.bench.ranks.child import Link
from builder.bench.ranks.launcher import Launcher, merged
from builder.bench.ranks.positions import Launch
from builder.bench.ranks.rank import Rank


def launcher_of(rank: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """A launcher whose only rank is the other end of a connection."""
    made = Launcher(
        parse(["--stall", "10", "--start-stall", "10", "--timeout", "5000"]), Launch(), str(tmp_path)
    )
    monkeypatch.setattr(made, "start_ranks", lambda: made.add(rank, made.ranks[0]))
    return made


def stop_once(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The clock jumps at the launcher's second look, as if it had been stopped (Ctrl-Z, a frozen
    cgroup).
    """
    looks: list[float] = []

    def monotonic() -> float:
        looks.append(time.monotonic())
        return looks[-1] + (seconds if len(looks) > 1 else 0.0)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))


def test_launcher_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that waited while the launcher was stopped count: their rank does not hang."""
    events: list[Any] = [{"begin": "matmul.fp32"}, {"begin": "attention"}, {"end": True}]
    own, other = socket.socketpair()
    for event in events:
        Link(other).send(event)
    stop_once(monkeypatch, 1000.0)
    made = launcher_of(own, tmp_path, monkeypatch)
    made.run()
    assert made.watchdog.findings == [] and made.ranks[0].step == "attention"


def test_locks_of_all_ranks(tmp_path: Path) -> None:
    """The report names the lock of each node: they may run different images."""
    made = Launcher(parse([]), Launch(units=3), str(tmp_path))
    for rank, lock in zip(made.ranks, ("sha256:b", "sha256:a", "sha256:b"), strict=True):
        rank.facts = {"lock": lock}
    assert made.report()["facts"]["locks"] == ["sha256:a", "sha256:b"]


# the results of several ranks as one


def results(*items: dict[str, Any]) -> list[tuple[Rank, dict[str, Any]]]:
    out = []
    for number, item in enumerate(items):
        rank = Rank(number, 0.0)
        rank.host = f"n{number}"
        base = {"id": "x", "status": "pass", "seen": f"by {number}", "advice": ""}
        rank.when["x"] = float(number)
        out.append((rank, {**base, **item}))
    return out


@pytest.mark.parametrize(
    ("better", "values", "shown"),
    [("higher", (90.0, 70.0, 80.0), 70.0), ("lower", (2.0, 1.0, 3.0), 3.0)],
)
def test_slowest_device(better: str, values: tuple[float, ...], shown: float) -> None:
    """The figure of several devices that all pass is that of the slowest, whoever reports first."""
    items = [{"median_gb_per_s": value, "better": better} for value in values]
    (item,) = merged(results(*items), 3, figures=True)
    assert item["median_gb_per_s"] == shown and len(item["ranks"]) == 3


def test_failure_counts_more() -> None:
    """Of failures the earliest is shown, because it may have caused the others."""
    items = [{"median_s": 9.0}, {"status": "fail"}, {"status": "fail", "median_s": 1.0}]
    (item,) = merged(results(*items), 3, figures=True)
    assert item["status"] == "fail" and item["seen"] == "rank 1 (n1): by 1"


def test_probe_names_its_ranks() -> None:
    (item,) = merged(results({}, {"status": "warn"}, {"status": "warn"}), 3)
    assert item["ranks"] == [1, 2] and item["seen"] == "rank 1 (n1): by 1"
