"""Several ranks that die, hang, are slow or absent. Their work needs no torch, see tests/support/ranks.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.ranks import RANKS, clock_while
from tests.support.smoke import Modified, Result
from tests.support.waiting import until

#: Seconds without progress until a rank counts as hung.
STALL = ("--stall", "1", "--start-stall", "1")


#: Seconds that nothing here needs, and that waiting for a limit of the benchmark itself exceeds.
LONG_S = 120


def ranks(tmp_path: Path, code: str = "", *options: str) -> Result:
    """Two ranks of one process."""
    folder = tmp_path / "meeting"
    folder.mkdir()
    options = ("--ranks", "2", "--timeout", "300", *options)
    return Modified(RANKS + code).run(*options, env={"MEETING": str(folder)})


def test_two_ranks(tmp_path: Path) -> None:
    result = ranks(tmp_path)
    assert result.verdict == "pass", result.report
    assert result.report["launch"] == {"ranks": 2, "nodes": 1, "by": "spawn"}
    work = result.measurement("work")
    assert [(r["rank"], r["median_gflop_per_s"]) for r in work["ranks"]] == [(0, 100.0), (1, 100.0)]
    assert "ranks" not in result.measurement("alone")
    assert [d["rank"] for d in result.report["facts"]["devices"]] == [0, 1]


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV in work"),
        ("os._exit(3)", "the process exited in work"),
    ],
)
def test_dies_alone(code: str, seen: str, tmp_path: Path) -> None:
    """A rank that dies while it works alone is named. The others go on, without collectives."""
    result = ranks(tmp_path, f"def fault(run): {code}\n")
    assert result.verdict == "fail" and result.failed == {"process", "allreduce.node"}
    assert "rank 1 (" in result.probe("process")["seen"] and seen in result.probe("process")["seen"]
    assert "rank 1 cannot take part" in result.measurement("allreduce.node")["seen"]
    assert result.measurement("alone")["status"] == "pass"
    assert result.report["duration_s"] < LONG_S


#: Rank 0 waits for rank 1, which is in its work.
WAITING = "[rank.state.name for rank in ranks] == ['READY', 'WORKING'] and ranks[1].step == 'work'"


@pytest.mark.parametrize(
    ("code", "seen", "state"),
    [
        ("time.sleep(1000)", "work did not end within 1 s", ""),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "which is stopped: work did not end", ", which is stopped"),
    ],
)
def test_hangs_alone(code: str, seen: str, state: str, tmp_path: Path) -> None:
    """A rank that hangs while it works alone is named, and no other rank is."""
    hangs = f"{WAITING} and {state!r} in bench.ranks.watchdog.process_state(ranks[1].pid)"
    result = ranks(tmp_path, f"def fault(run): {code}\n" + clock_while(hangs), *STALL)
    assert result.verdict == "fail" and result.failed == {"watchdog", "allreduce.node"}
    found = result.probe("watchdog")["seen"]
    assert "rank 1 (" in found and seen in found and "rank 0" not in found
    assert result.measurement("alone")["status"] == "pass"
    assert result.report["duration_s"] < LONG_S


#: Rank 1 does not come to the meeting, so that the others wait for it.
MISSING = "def in_meeting(run):\n    if run.place.rank == 1:\n"


def test_dies_in_a_collective(tmp_path: Path) -> None:
    code = MISSING + "        os.kill(os.getpid(), signal.SIGKILL)\n" + clock_while("ranks[1].done")
    result = ranks(tmp_path, code, *STALL)
    assert result.verdict == "fail" and result.failed == {"process"}
    found = result.probe("process")["seen"]
    assert "rank 1 (" in found and "SIGKILL in allreduce.node" in found
    assert result.measurement("work")["status"] == "pass" and result.report["duration_s"] < LONG_S


def test_later_collectives_of_a_rank_that_failed(tmp_path: Path) -> None:
    """A rank whose collective was interrupted starts no other: the others wait in the first one."""
    code = MISSING + "        raise RuntimeError('NCCL error')\n"
    code += "bench.measurements.MEASUREMENTS.append(\n"
    code += "    bench.core.Measurement('allgather.node', lambda run: time.sleep(1000), 'all'))\n"
    result = ranks(tmp_path, code + clock_while("ranks[1].done"), *STALL)
    assert result.failed == {"allreduce.node", "watchdog"}
    assert result.measurement("allgather.node")["seen"] == "allreduce.node failed"
    assert result.report["duration_s"] < LONG_S


# ranks that torchrun or srun starts: a process each


def free_port() -> int:
    """A port with two free ones after it."""
    return free_ports(3)[0]


class Unit:
    """One of two processes that torchrun or srun would have started."""

    def __init__(self, variables: dict[str, str], code: str = "", *options: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        command = Modified(RANKS + code).command("--timeout", "300", *options)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env={**env, **variables}, text=True, stdout=pipe, stderr=pipe
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=300)
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


def test_programs_of_a_killed_rank(tmp_path: Path) -> None:
    """A program that a rank runs in a session of its own ends with the test, if the rank cannot end
    it.
    """
    code = """
def fault(run):
    import subprocess
    program = ["bash", "-c", "sleep 1000 & echo $! >$MEETING/inner; wait"]
    started = subprocess.Popen(program, start_new_session=True)
    while not os.path.exists(FOLDER + "/inner") or not open(FOLDER + "/inner").read():
        time.sleep(0.01)
    open(FOLDER + "/outer", "w").write(str(started.pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert ranks(tmp_path, code).verdict == "fail"
    for name in ("inner", "outer"):
        pid = (tmp_path / "meeting" / name).read_text().strip()
        assert not Path("/proc", pid).exists(), name


def test_torchrun(tmp_path: Path) -> None:
    """Two processes make one report."""
    port, folder = free_port(), tmp_path / "meeting"
    second, first = (Unit(torchrun(rank, port, folder)) for rank in (1, 0))
    code, out, err = first.end()
    report = json.loads(out)
    assert (code, report["verdict"]) == (0, "pass"), err
    assert report["launch"] == {"ranks": 2, "nodes": 1, "by": "environment"}
    work = next(m for m in report["measurements"] if m["id"] == "work")
    assert [r["rank"] for r in work["ranks"]] == [0, 1]
    assert second.end()[:2] == (0, "")


def test_hangs_behind_a_relay(tmp_path: Path) -> None:
    """A rank of another unit that hangs is killed by its relay, and all units end alike."""
    port, folder = free_port(), tmp_path / "meeting"
    code = "def fault(run): time.sleep(1000)\n" + clock_while(WAITING)
    ends = [unit.end() for unit in [Unit(torchrun(rank, port, folder), code, *STALL) for rank in (0, 1)]]
    assert [end[0] for end in ends] == [1, 1]
    found = next(p for p in json.loads(ends[0][1])["probes"] if p["id"] == "watchdog")
    assert "work did not end within 1 s" in found["seen"]


#: Rank 1 hangs in its work. The launcher writes a file as soon as it knows that rank 1 is there.
WORKS = """
def fault(run):
    time.sleep(1000)

receive = bench.ranks.rank.Rank.receive

def receive_and_show(self, event):
    receive(self, event)
    if (self.number, self.step) == (1, "work"):
        open(FOLDER + "/here", "w").close()

bench.ranks.rank.Rank.receive = receive_and_show
"""


def two_working(tmp_path: Path) -> list[Unit]:
    """Two units; the second one's rank is at work, and the launcher knows it."""
    port, folder = free_port(), tmp_path / "meeting"
    units = [Unit(torchrun(rank, port, folder), WORKS) for rank in (0, 1)]
    until((folder / "here").exists, LONG_S)
    return units


def test_relay_is_killed(tmp_path: Path) -> None:
    first, second = two_working(tmp_path)
    second.process.kill()  # the unit, not its rank
    second.process.communicate()
    end, out, _ = first.end()
    found = next(p for p in json.loads(out)["probes"] if p["id"] == "process")
    assert end == 1 and "rank 1 (" in found["seen"] and "the connection ended in work" in found["seen"]


def test_launcher_is_killed(tmp_path: Path) -> None:
    first, second = two_working(tmp_path)
    first.process.kill()
    first.process.communicate()
    end, out, err = second.end()
    assert (end, out) == (2, "") and "the connection to rank 0 has ended" in err


def test_interrupted(tmp_path: Path) -> None:
    """A signal to the launcher ends all units, with a report."""
    first, second = two_working(tmp_path)
    first.process.send_signal(signal.SIGTERM)
    end, out, _ = first.end()
    report = json.loads(out)
    assert (end, report["verdict"]) == (2, "error")
    assert report["launch"]["ranks"] == 2 and "SIGTERM" in report["probes"][-1]["seen"]
    assert second.end()[0] == 2


def test_launcher_cannot_be_reached(tmp_path: Path) -> None:
    code, out, err = Unit(torchrun(1, free_port(), tmp_path / "meeting"), "", "--start-stall", "0.3").end()
    assert (code, out) == (2, "") and "rank 1 cannot reach rank 0 at 127.0.0.1" in err
