"""Several ranks: dead, hung, slow, absent; with work that needs no torch, so that every fault can be made at will."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.smoke import Beginning, Result, ask, fake_torch, load

REPOSITORY = Path(__file__).parents[2]

#: Every rank has a GPU; it works, and then meets the others at files of a folder.
RANKS = f"""
sys.path.insert(0, {str(REPOSITORY)!r})
from tests.support.fake_torch import fake_torch
FOLDER = os.environ.get("MEETING", "")
b.Head.GRACE_S = 1.0
b.gpu_state = lambda run, index: {{}}

def take(run):
    run.torch = fake_torch("CUDA", devices=2)
    return "made up"

def figure(value):
    return {{**b.rate("gflop_per_s", value, [1.0, 1.0, 1.0]), "device": "x", **b.checked("nothing", 0, 0, True)}}

def work(run):
    if run.place.rank == 1:
        fault(run)
    return figure(100.0)

def fault(run):
    pass

def meet(run):
    open(os.path.join(FOLDER, str(run.place.rank)), "w").close()
    in_meeting(run)
    while len([n for n in os.listdir(FOLDER) if n.isdigit()]) < run.place.ranks:
        time.sleep(0.02)
    return figure(1.0)

def in_meeting(run):
    pass

b.PROBES[:] = [b.Probe("torch.import", take)]
b.MEASUREMENTS[:] = [
    b.Measurement("work", lambda run: work(run)), b.Measurement("alone", lambda run: figure(1.0), "once"),
    b.Measurement("allreduce.node", meet, "all"),
]
"""


def ranks(tmp_path: Path, code: str = "", *options: str) -> Result:
    folder = tmp_path / "meeting"
    folder.mkdir()
    return Beginning(RANKS + code).run(
        "--ranks", "2", "--timeout", "60", *options, env={"MEETING": str(folder)}
    )


def test_two_ranks(tmp_path: Path) -> None:
    result = ranks(tmp_path)
    assert result.verdict == "pass", result.report
    assert result.report["launch"] == {"ranks": 2, "nodes": 1, "by": "spawn"}
    work = result.measurement("work")
    assert [(r["rank"], r["median_gflop_per_s"]) for r in work["ranks"]] == [(0, 100.0), (1, 100.0)]
    assert "ranks" not in result.measurement("alone")
    assert [d["rank"] for d in result.report["facts"]["devices"]] == [0, 1]
    assert result.probe("ranks.even")["status"] == "pass"


@pytest.mark.parametrize(
    ("code", "said"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV in work"), ("os._exit(3)", "ended by itself in work")],
)
def test_a_rank_dies_at_work(code: str, said: str, tmp_path: Path) -> None:
    result = ranks(tmp_path, f"def fault(run): {code}\n")
    assert result.verdict == "fail" and result.failed == {"process", "allreduce.node"}
    assert "rank 1 (" in result.probe("process")["seen"] and said in result.probe("process")["seen"]
    assert "rank 1 takes no part" in result.measurement("allreduce.node")["seen"]
    assert result.measurement("alone")["status"] == "pass"  # the others go on
    assert result.report["duration_s"] < 30


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("time.sleep(1000)", "no end of work after 2 s"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "which is stopped: no end of work"),
    ],
)
def test_a_rank_hangs_at_work(code: str, said: str, tmp_path: Path) -> None:
    result = ranks(tmp_path, f"def fault(run): {code}\n", "--stall", "2")
    assert result.verdict == "fail" and result.failed == {"watchdog", "allreduce.node"}
    seen = result.probe("watchdog")["seen"]
    assert "rank 1 (" in seen and said in seen and "rank 0" not in seen
    assert result.measurement("alone")["status"] == "pass"
    assert result.report["duration_s"] < 30


AMONG = "def in_meeting(run):\n    if run.place.rank == 1:\n        os.unlink(FOLDER + '/1')\n"


def test_a_rank_dies_among_the_others(tmp_path: Path) -> None:
    result = ranks(tmp_path, AMONG + "        os.kill(os.getpid(), signal.SIGKILL)\n")
    assert result.verdict == "fail" and result.failed == {"process"}
    assert (
        "rank 1 (" in result.probe("process")["seen"]
        and "SIGKILL in allreduce.node" in result.probe("process")["seen"]
    )
    assert result.measurement("work")["status"] == "pass" and result.report["duration_s"] < 30


def test_a_rank_fails_among_the_others(tmp_path: Path) -> None:
    result = ranks(tmp_path, AMONG + "        raise RuntimeError('NCCL error')\n")
    assert result.verdict == "fail" and result.failed == {"allreduce.node"}
    assert "NCCL error" in result.measurement("allreduce.node")["seen"] and result.report["duration_s"] < 30


def test_all_ranks_hang_together(tmp_path: Path) -> None:
    result = ranks(tmp_path, "def in_meeting(run): time.sleep(1000)\n", "--stall", "2")
    assert result.failed == {"watchdog"}
    found = result.probe("watchdog")
    assert (
        "rank 0 (" in found["seen"]
        and "rank 1 (" in found["seen"]
        and "no end of allreduce.node" in found["seen"]
    )
    assert "network" in found["advice"]


def test_the_time_is_up(tmp_path: Path) -> None:
    result = ranks(tmp_path, "def fault(run): time.sleep(1000)\n", "--timeout", "3")
    assert result.failed == {"watchdog"} and "rank 1 (" in result.probe("watchdog")["seen"]
    assert "3 s" in result.probe("watchdog")["seen"] and "rank 0" not in result.probe("watchdog")["seen"]


def test_a_slow_rank(tmp_path: Path) -> None:
    result = ranks(tmp_path, "def work(run): return figure(100.0 if run.place.rank == 0 else 60.0)\n")
    assert result.verdict == "warn"
    found = result.probe("ranks.even")
    assert found["status"] == "warn" and "rank 1 (" in found["seen"] and "60 % in work" in found["seen"]


def test_what_one_rank_alone_finds(tmp_path: Path) -> None:
    code = "def look(run):\n    if run.place.rank == 1:\n        raise b.fail('odd', 'do this')\n    return 'fine'\n"
    result = ranks(tmp_path, code + "b.PROBES.append(b.Probe('gpu.compute', look))\n")
    found = result.probe("gpu.compute")
    assert found["status"] == "fail" and found["seen"].startswith("rank 1 (") and found["ranks"] == [1]
    assert found["seen"].endswith("odd") and found["advice"] == "do this"


def test_a_rank_without_torch(tmp_path: Path) -> None:
    code = "def take_one(run):\n    if run.place.rank == 1:\n        raise b.fail('no torch', 'x')\n    return take(run)\n"
    result = ranks(tmp_path, code + "b.PROBES[:] = [b.Probe('torch.import', take_one)]\n")
    assert (
        result.failed == {"torch.import", "allreduce.node"} and result.measurement("work")["status"] == "pass"
    )


# started from elsewhere -----------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port with two free ones after it, as far as can be known."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Unit:
    """One of two processes that torchrun or srun would have started."""

    def __init__(self, rank: int, variables: dict[str, str], code: str = "", *options: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        self.process = subprocess.Popen(
            Beginning(RANKS + code).command("--timeout", "60", *options),
            env={**env, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err, err
        return self.process.returncode, out, err


def torchrun(rank: int, port: int, folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "MEETING": str(folder),
    }


def slurm(rank: int, job: int, folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": str(rank),
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "MEETING": str(folder),
    }


@pytest.mark.parametrize("by", ["environment", "slurm"])
def test_ranks_of_torchrun_and_srun(by: str, tmp_path: Path) -> None:
    port, job, folder = free_port(), os.getpid(), tmp_path / "meeting"
    variables = [torchrun(r, port, folder) if by == "environment" else slurm(r, job, folder) for r in (0, 1)]
    second, first = Unit(1, variables[1]), Unit(0, variables[0])
    code, out, err = first.end()
    report = json.loads(out)
    assert (code, report["verdict"]) == (0, "pass"), err
    assert report["launch"] == {"ranks": 2, "nodes": 1, "by": by}
    assert [r["rank"] for r in next(m for m in report["measurements"] if m["id"] == "work")["ranks"]] == [
        0,
        1,
    ]
    assert second.end()[:2] == (0, "")  # one report for all


def test_all_units_end_with_the_same_code(tmp_path: Path) -> None:
    port, folder, code = free_port(), tmp_path / "meeting", "def fault(run): raise b.fail('wrong', 'x')\n"
    units = [Unit(r, torchrun(r, port, folder), code) for r in (0, 1)]
    ends = [u.end() for u in units]
    assert [e[0] for e in ends] == [1, 1]
    assert "rank 1 (" in next(m for m in json.loads(ends[0][1])["measurements"] if m["id"] == "work")["seen"]


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    result = Unit(0, torchrun(0, free_port(), tmp_path / "meeting"), "", "--stall", "2").end()
    report = json.loads(result[1])
    found = next(p for p in report["probes"] if p["id"] == "ranks.present")
    assert result[0] == 1 and "rank 1 of 2 never came" in found["seen"] and "port" in found["advice"]


def test_rank_0_never_comes(tmp_path: Path) -> None:
    code, out, err = Unit(1, torchrun(1, free_port(), tmp_path / "meeting"), "", "--stall", "1").end()
    assert (code, out) == (2, "") and "rank 1 cannot reach rank 0 at 127.0.0.1" in err


def test_a_node_that_goes_away(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "meeting"
    code = "def fault(run):\n    open(FOLDER + '/here', 'w').close()\n    time.sleep(1000)\n"
    first, second = (Unit(r, torchrun(r, port, folder), code) for r in (0, 1))
    wait_for(folder / "here")
    second.process.kill()  # the parent, not the rank
    second.process.communicate()
    end, out, _ = first.end()
    found = next(p for p in json.loads(out)["probes"] if p["id"] == "process")
    assert end == 1 and "rank 1 (" in found["seen"] and "the connection ended in work" in found["seen"]


def test_rank_0_goes_away(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "meeting"
    code = "def fault(run):\n    open(FOLDER + '/here', 'w').close()\n    time.sleep(1000)\n"
    first, second = (Unit(r, torchrun(r, port, folder), code) for r in (0, 1))
    wait_for(folder / "here")
    first.process.kill()
    first.process.communicate()
    end, out, err = second.end()
    assert (end, out) == (2, "") and "rank 0 is gone" in err


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert path.exists()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("", 0))
        s.listen()
        code, out, _ = Unit(0, torchrun(0, s.getsockname()[1] - 1, tmp_path / "meeting")).end()
    report = json.loads(out)
    assert (code, report["verdict"]) == (2, "error") and "in use" in report["probes"][-1]["seen"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_with_several_ranks(number: int, tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "meeting"
    code = "def fault(run):\n    open(FOLDER + '/here', 'w').close()\n    time.sleep(1000)\n"
    first, second = (Unit(r, torchrun(r, port, folder), code) for r in (0, 1))
    wait_for(folder / "here")
    first.process.send_signal(number)
    end, out, _ = first.end()
    report = json.loads(out)
    assert (end, report["verdict"]) == (2, "error")
    assert report["launch"]["ranks"] == 2 and signal.Signals(number).name in report["probes"][-1]["seen"]
    assert second.end()[0] == 2


# who is who -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in list(os.environ):
        if name.startswith("SLURM") or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
        ):
            monkeypatch.delenv(name)
    return load()


def planned(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], *options: str
) -> Any:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return bench.plan(bench.parse(list(options)))


def test_who_starts_what(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.plan(bench.parse([])) == bench.Launch()
    assert bench.plan(bench.parse(["--ranks", "3"])) == bench.Launch("spawn", ranks=3)
    monkeypatch.setattr(bench, "count_gpus", lambda limit: 4)
    assert bench.plan(bench.parse(["--all-gpus"])) == bench.Launch("spawn", ranks=4)
    monkeypatch.setattr(bench, "count_gpus", lambda limit: 0)
    assert bench.plan(bench.parse(["--all-gpus"])) == bench.Launch()


def test_one_task_for_each_gpu_of_two_nodes(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    step = {
        "SLURM_STEP_NUM_TASKS": 16,
        "SLURM_PROCID": 9,
        "SLURM_LOCALID": 1,
        "SLURM_STEP_NODELIST": "nid[005003,005009]",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
        "SLURM_JOB_ID": 7,
        "SLURM_STEP_ID": 2,
    }
    launch = planned(bench, monkeypatch, step)
    assert (launch.by, launch.address, launch.port) == ("slurm", "nid005003", 20116)
    assert launch.place(0, "") == bench.Place(9, 16, 1, 8, "tcp://nid005003:20117")
    assert planned(bench, monkeypatch, {}, "--ranks", "1") == bench.Launch()  # said to be alone


def test_one_task_for_each_of_two_nodes(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    step = {
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_PROCID": 1,
        "SLURM_LOCALID": 0,
        "SLURM_STEP_NODELIST": "a1,b2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    monkeypatch.setattr(bench, "count_gpus", lambda limit: 4)
    launch = planned(bench, monkeypatch, step, "--all-gpus")
    assert [launch.place(n, "")[:4] for n in range(4)] == [
        (4, 8, 0, 4),
        (5, 8, 1, 4),
        (6, 8, 2, 4),
        (7, 8, 3, 4),
    ]


def test_a_step_of_one_task_is_alone(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # so is a batch script, whose SLURM_NTASKS is that of the whole job
    assert (
        planned(bench, monkeypatch, {"SLURM_STEP_NUM_TASKS": 1, "SLURM_NTASKS": 8, "SLURM_PROCID": 0})
        == bench.Launch()
    )


def test_ranks_whose_number_on_the_node_nobody_says(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"WORLD_SIZE": 8, "RANK": 5, "LOCAL_RANK": 1, "MASTER_ADDR": "nid1", "MASTER_PORT": 29600}
    place = planned(bench, monkeypatch, job).place(0, "")
    assert place == bench.Place(5, 8, 1, 0, "tcp://nid1:29602")
    found = ask(bench, "gpu.visible", fake_torch("CUDA"), place=place, devices=4)
    assert found.status == "pass" and "for each of the ranks" in found.seen
    assert planned(bench, monkeypatch, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}).place(0, "").local_ranks == 4
    found = ask(bench, "gpu.visible", fake_torch("CUDA"), place=bench.Place(5, 8, 1, 4), devices=8)
    assert found.status == "fail" and "8 were expected" in found.advice


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two is no number"),
        ({"WORLD_SIZE": "2"}, "RANK or MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "x"}, "rank 2 of 2"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "SLURM_STEP_NODELIST is not set"),
    ],
)
def test_variables_that_make_no_sense(
    variables: dict[str, str],
    said: str,
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert bench.main(["--json", "-"]) == 2
    finally:
        for n, handler in handlers.items():
            signal.signal(n, handler)
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "error" and said in report["probes"][0]["seen"]


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
def test_the_first_host(nodes: str, first: str, bench: ModuleType) -> None:
    assert bench.first_host(nodes) == first


@pytest.mark.parametrize("value", ["0", "-1", "many", "5000"])
def test_odd_numbers_of_ranks(value: str, bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse(["--ranks", value])
    assert "--ranks" in capsys.readouterr().err


def test_counting_gpus_survives_anything(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('no driver')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert bench.count_gpus(20) == 0
    (tmp_path / "torch.py").write_text("import time; time.sleep(100)")
    started = time.monotonic()
    assert bench.count_gpus(1) == 0 and time.monotonic() - started < 10


def test_options_are_documented(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse(["--help"])
    documented = (REPOSITORY / "docs" / "smoke.md").read_text()
    options = {
        a for line in capsys.readouterr().out.splitlines() for a in line.split() if a.startswith("--")
    } - {"--help"}
    assert options and all(f"{o.rstrip(',')}" in documented for o in options)
    assert isinstance(bench.parse([]), argparse.Namespace)
