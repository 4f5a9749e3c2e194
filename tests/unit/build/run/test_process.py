"""Commands of the host, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from builder.build.run import process
from builder.build.run.process import TIMED_OUT, Completed, execute, reason
from builder.core.errors import RunnerError
from tests.support.waiting import until


def test_output_and_exit_codes() -> None:
    done = execute(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.returncode, done.stdout, done.stderr, done.timed_out) == (7, "out\n", "err\n", False)
    assert execute(["sh", "-c", "kill -KILL $$"]).returncode == 137
    assert execute(["sh", "-c", "printf '\\377'"]).stdout == "\ufffd"
    with pytest.raises(RunnerError, match="cannot run /no/such/program"):
        execute(["/no/such/program"])


def test_reasons() -> None:
    """A program that is stopped at its time limit says nothing; the reason is that it was silent."""
    assert reason(Completed(1, "", "\n Error: no cgroups\nmore")) == "Error: no cgroups"
    assert reason(Completed(1, "", "")) == "no reason given"
    assert reason(Completed(TIMED_OUT, "", "", timed_out=True)) == "it did not answer in time"


@pytest.mark.parametrize(
    "script", ["sleep {n} & sleep {n} & wait", "trap '' TERM; sleep {n}", "setsid sleep {n}"]
)
def test_timeout(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is killed with its children; one that left the group does not block."""
    monkeypatch.setattr(process, "GRACE_PERIOD_S", 0.5)
    n = f"1234.{os.getpid()}{time.monotonic_ns() % 10**9}"
    wait = process._wait

    def wait_after_start(*args: Any) -> bool:
        """The time counts from when the command works."""
        until(lambda: args[1][0].output.data == b"begun\n")
        return wait(*args)

    monkeypatch.setattr(process, "_wait", wait_after_start)
    done = execute(["sh", "-c", f"echo begun; {script.format(n=n)}"], timeout_s=0.5)
    assert done.timed_out and done.returncode == TIMED_OUT and done.stdout == "begun\n"
    if "setsid" not in script:  # that one left the group on purpose
        until(lambda: not processes(n))
    for pid in processes(n):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output(stream: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints without end is killed before the memory is full."""
    monkeypatch.setattr(process, "MAX_OUTPUT", 3 << 20)
    with pytest.raises(RunnerError, match=r"/bin/sh wrote more than 3 MiB"):
        execute(["/bin/sh", "-c", f"exec yes >&{stream}"], timeout_s=60)
    done = execute(["sh", "-c", f"head -c {3 << 20} /dev/zero >&{stream}"])
    assert len(done.stdout + done.stderr) == 3 << 20


def processes(word: str) -> list[int]:
    """The processes with this word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_for_process(word: str) -> None:
    """Waits until a process with this word runs: right after its start the command line is empty."""
    until(lambda: processes(word))


def test_ctrl_c_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the moment when the command starts kills it too, and the old handler is back."""
    n = f"1234.{os.getpid()}{time.monotonic_ns() % 10**9}"
    popen = subprocess.Popen

    def interrupted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started = popen(*args, **options)
        wait_for_process(n)
        signal.raise_signal(signal.SIGINT)
        return started

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(["sleep", n])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert not processes(n)


def test_lines() -> None:
    """Lines of standard error are passed on while the command runs, each once and complete."""
    lines: list[str] = []
    script = "printf 'a\\nb' >&2; echo no; sleep 0.1; printf 'c\\n\\nd' >&2"
    done = execute(["sh", "-c", script], on_line=lines.append)
    assert lines == ["a", "bc", ""] and done.stderr == "a\nbc\n\nd" and done.stdout == "no\n"
