"""Probes after the measurements."""

from __future__ import annotations

from builder.bench.core import Run
from tests.support.smoke import ask_run, make_run
from tests.unit.bench.conftest import WriteFile


def spun(share: float = 1.0) -> Run:
    """A rank that got this share of a core."""
    run = make_run()
    run.wall_s, run.busy_s = 1.0, share
    return run


def test_share_of_a_core(root: WriteFile) -> None:
    assert ask_run("machine.steady", spun(0.97)).status == "pass"
    found = ask_run("machine.steady", spun(0.5))
    assert found.status == "warn" and "50 % of a core" in found.seen


def test_held_back_by_a_quota(root: WriteFile) -> None:
    root("/sys/fs/cgroup/cpu.stat", "usage_usec 5\nthrottled_usec 4000000")
    run = spun()
    run.throttled_before_s = 1.0
    found = ask_run("machine.steady", run)
    assert (
        found.status == "warn"
        and "held this process back for 3.0 s" in found.seen
        and "quota" in found.advice
    )


def test_uneven_figures(root: WriteFile) -> None:
    """One uneven measurement may be chance, two are not."""
    uneven = [{"id": name, "status": "pass", "lost_fraction": 0.5} for name in ("matmul.fp32", "memory.copy")]
    run = spun()
    run.results.extend(uneven)
    found = ask_run("machine.steady", run)
    assert found.status == "warn" and found.seen == "uneven figures: matmul.fp32, memory.copy"
    run = spun()
    run.results.extend(uneven[:1])
    assert ask_run("machine.steady", run).status == "pass"


def test_without_torch() -> None:
    """Where nothing was measured, there is nothing to say about the machine."""
    found = ask_run("machine.steady", make_run())
    assert (found.status, found.seen) == ("skip", "without torch nothing was measured")


def test_budget() -> None:
    run = make_run()
    assert ask_run("time.budget", run).status == "pass"
    run.missed = ["training", "dataloader"]
    found = ask_run("time.budget", run)
    assert found.status == "warn" and "not enough for training, dataloader" in found.seen
