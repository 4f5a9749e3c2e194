"""The recipe's own test: its exit code, its last lines, its time limit."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tests.support.smoke import run


def ran(*command: str, limit: str = "30") -> Any:
    """The report of the benchmark with this command alone."""
    options = ("--framework", "none", "--command", json.dumps(command), "--command-timeout", limit)
    return run(*options)


def test_pass() -> None:
    result = ran(sys.executable, "-c", "print('hello')")
    item = result.measurement("command")
    assert result.code == 0 and item["exit_code"] == 0 and item["output"] == ["hello"]
    assert result.report["test"]["command"][1:] == ["-c", "print('hello')"]


def test_fail() -> None:
    """The message has the last lines, of both outputs."""
    program = "import sys; [print(n) for n in range(99)]; print('why', file=sys.stderr); sys.exit(3)"
    result = ran(sys.executable, "-u", "-c", program)
    item = result.measurement("command")
    assert result.verdict == "fail" and result.failed == {"command"} and item["exit_code"] == 3
    assert item["seen"] == "exit code 3: 97 | 98 | why" and len(item["output"]) == 20


def test_time_limit() -> None:
    """After its time the program and all that it started are ended."""
    started = time.monotonic()
    item = ran("sh", "-c", "echo working; sleep 1000 & sleep 1000", limit="5").measurement("command")
    assert time.monotonic() - started < 120
    assert item["status"] == "fail" and item["seen"] == "did not end within 5 s: working"


def test_progress() -> None:
    """With --progress each step is announced on standard error."""
    lines = run("--framework", "none", "--progress", python=["-S"]).table.splitlines()
    assert "smoke: begin imports" in lines and lines[0] == "smoke: begin cpu.affinity"
