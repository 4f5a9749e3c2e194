"""How many ranks a process starts, and which they are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from builder.bench.core import Place
from builder.bench.options import parse
from builder.bench.ranks import plan as module
from builder.bench.ranks.plan import Launch, count_gpus, first_host, plan


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


def test_srun_one_task_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {
        "SLURM_STEP_NUM_TASKS": 16,
        "SLURM_PROCID": 9,
        "SLURM_LOCALID": 1,
        "SLURM_STEP_NODELIST": "nid[005003,005009]",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
        "SLURM_JOB_ID": 7,
        "SLURM_STEP_ID": 2,
    }
    launch = planned(monkeypatch, step)
    assert (launch.by, launch.address, launch.port) == ("slurm", "nid005003", 20116)
    assert launch.place(0, "") == Place(9, 16, 1, 8, "tcp://nid005003:20117")
    assert planned(monkeypatch, {}, "--ranks", "1") == Launch()  # the option comes first


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


def test_step_of_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of one task is alone, and so is a batch script, whose SLURM_NTASKS is that of the whole job."""
    step = {"SLURM_STEP_NUM_TASKS": 1, "SLURM_NTASKS": 8, "SLURM_PROCID": 0}
    assert planned(monkeypatch, step) == Launch()


def test_local_ranks_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without LOCAL_WORLD_SIZE the ranks on this node come from Slurm, or are unknown (0)."""
    job = {"WORLD_SIZE": 8, "RANK": 5, "LOCAL_RANK": 1, "MASTER_ADDR": "nid1", "MASTER_PORT": 29600}
    assert planned(monkeypatch, job).place(0, "") == Place(5, 8, 1, 0, "tcp://nid1:29602")
    launch = planned(monkeypatch, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"})
    assert launch.place(0, "").local_ranks == 4


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("nid[001-003,007]", "nid001"),
        ("a7", "a7"),
        ("x1,x2", "x1"),
        ("r1n[02,05].site", "r1n02.site"),
        ("nid[9],z", "nid9"),
        ("", ""),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_count_gpus_survives_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('no driver')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert count_gpus(240) == 0
    (tmp_path / "torch.py").write_text("import time; time.sleep(100)")
    started = time.monotonic()
    assert count_gpus(0.4) == 0 and time.monotonic() - started < 90
