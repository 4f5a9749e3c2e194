"""The benchmark as a program: it writes a report whatever happens. No torch is needed here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import clock_while
from tests.support.smoke import Modified, Result, program, run, with_torch
from tests.support.waiting import alive, until


def test_report_cannot_be_written(tmp_path: Path) -> None:
    command = [sys.executable, "-S", program(), "--json", tmp_path / "no" / "r.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "cannot write the report" in done.stderr and "Traceback" not in done.stderr


def test_torch_missing() -> None:
    result = run("--expect", "none", python=["-S"])  # -S: no site-packages
    assert result.verdict == "fail"
    assert result.failed == {"torch.import"}
    assert "torch is not installed" in result.probe("torch.import")["seen"]
    assert result.probe("torch.import")["advice"]
    assert all(m["status"] == "skip" for m in result.report["measurements"])


def test_options_in_the_report(tmp_path: Path) -> None:
    options = ("--expect", "amd", "--architectures", "gfx90a,gfx942", "--devices", "8", "--budget", "7")
    report = run(*options, python=["-S"]).report
    assert report["expect"] == {"gpu": "amd", "architectures": ["gfx90a", "gfx942"], "devices": 8}
    assert "device_only" not in report
    assert run("--expect", "none", "--device-only", python=["-S"]).report["device_only"] is True


@pytest.mark.parametrize(
    "source",
    [
        # holds the interpreter's lock, as a hung driver may: no other thread of the process can run
        "import ctypes; ctypes.PyDLL(None).sleep(1000)",
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1000)",
    ],
)
def test_hang(source: str, tmp_path: Path) -> None:
    """A hang ends at the time limit, and the report names it."""
    hangs = Modified(clock_while("ranks[0].step == 'torch.import'"))
    result = hangs.run("--expect", "none", "--start-stall", "1", env=with_torch(tmp_path, source))
    assert result.verdict == "fail" and result.failed == {"watchdog"}
    assert "torch.import did not end within 1 s" in result.probe("watchdog")["seen"]


def test_output_of_libraries(tmp_path: Path) -> None:
    """What libraries print does not get into the report."""
    source = "import os; print('hello'); os.write(1, b'from C'); raise ImportError('x')"
    result = run(env={**with_torch(tmp_path, source), "PYTHONUNBUFFERED": ""})
    assert result.failed == {"torch.import"} and "hello" in result.table and "from C" in result.table


def wait_for(path: Path) -> str:
    """The content of a file that another process writes."""
    until(lambda: path.exists() and path.read_text())
    return path.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted(number: int, tmp_path: Path) -> None:
    """A signal ends the run early, with a report."""
    here = tmp_path / "here"
    source = f"open({str(here)!r}, 'w').write('x'); import time; time.sleep(1000)"
    command = [sys.executable, str(program()), "--json", "-"]
    env = {**os.environ, **with_torch(tmp_path, source)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    wait_for(here)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    result = Result(subprocess.CompletedProcess(command, process.returncode, out, err))
    assert result.verdict == "error" and signal.Signals(number).name in result.probe("process")["seen"]


def test_rank_dies_with_its_parent(tmp_path: Path) -> None:
    here = tmp_path / "pid"
    source = f"import os, time; open({str(here)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    env = {**os.environ, **with_torch(tmp_path, source)}
    nothing = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, str(program())], stdout=nothing, stderr=nothing, env=env)
    rank = int(wait_for(here))
    process.kill()
    process.wait()
    until(lambda: not alive(rank))


def test_report_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = subprocess.run([sys.executable, "-S", program(), "--json", path], capture_output=True, text=True)
    assert done.returncode == 1 and "FAIL" in done.stdout
    assert json.loads(path.read_text())["verdict"] == "fail"
