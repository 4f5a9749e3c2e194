"""How many ranks a process starts, and which they are."""

from __future__ import annotations

import os
from typing import Any

import pytest

from builder.bench.options import parse
from builder.bench.ranks import plan as module
from builder.bench.ranks.plan import Launch, first_host, plan


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in list(os.environ):
        if name.startswith("SLURM") or name in known:
            monkeypatch.delenv(name)


def planned(monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], *options: str) -> Launch:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return plan(parse(list(options)))


def test_without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(parse([])) == Launch()
    assert plan(parse(["--ranks", "3"])) == Launch("spawn", ranks=3)
    monkeypatch.setattr(module, "count_gpus", lambda limit: 4)
    assert plan(parse(["--all-gpus"])) == Launch("spawn", ranks=4)
    monkeypatch.setattr(module, "count_gpus", lambda limit: 0)
    assert plan(parse(["--all-gpus"])) == Launch()


def test_srun_one_task_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --all-gpus each task starts a rank for each GPU of its node."""
    step = {
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_PROCID": 1,
        "SLURM_LOCALID": 0,
        "SLURM_STEP_NODELIST": "a1,b2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    monkeypatch.setattr(module, "count_gpus", lambda limit: 4)
    launch = planned(monkeypatch, step, "--all-gpus")
    places = [launch.place(n, "")[:4] for n in range(4)]
    assert places == [(4, 8, 0, 4), (5, 8, 1, 4), (6, 8, 2, 4), (7, 8, 3, 4)]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("nid[001-003,007]", "nid001"),
        ("a7", "a7"),
        ("r1n[02,05].site,x", "r1n02.site"),
        ("", ""),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
