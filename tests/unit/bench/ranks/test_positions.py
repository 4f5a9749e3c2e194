"""How many ranks a process starts, and which they are."""

from __future__ import annotations

import os
from typing import Any

import pytest

from builder.bench.options import parse
from builder.bench.ranks import positions as module
from builder.bench.ranks.positions import Launch, plan


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


def test_tasks_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task of a builder job is one rank; the ranks of a node are counted from Slurm's
    variables.
    """
    job = {"WORLD_SIZE": 8, "RANK": 5, "LOCAL_RANK": 1, "MASTER_ADDR": "a1", "MASTER_PORT": 29400}
    step = {"SLURM_STEP_NUM_TASKS": 8, "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    launch = planned(monkeypatch, {**job, **step}, "--all-gpus")
    assert launch.place(0, "") == (5, 8, 1, 4, "tcp://a1:29402")


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({"SLURM_STEP_NUM_TASKS": 2}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": 2, "RANK": 0}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": 2, "RANK": 2, "MASTER_ADDR": "a"}, "rank 2 of 2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a number"),
    ],
)
def test_contradictions(variables: dict[str, Any], seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=seen):
        planned(monkeypatch, variables)
    with pytest.raises(ValueError, match="--ranks must be at least 1"):
        plan(parse(["--ranks", "0"]))
