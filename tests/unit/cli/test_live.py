"""What runs now: the state of a task, lines in a log, a display in a terminal."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator

import click
import pytest

from builder.cli import live, run
from builder.cli.live import LiveTask
from builder.cli.output import Output
from builder.core.errors import ConfigError
from builder.core.progress import working
from tests.support.waiting import until


def activity_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "activity"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    until(lambda: not activity_threads())


def task(total: int | None, unit: str = "B", **advances: int) -> LiveTask:
    """A task that began at 100 s; ``s5=3`` advances by 3 at 105 s."""
    made = LiveTask("x", total, unit, 100.0)
    for name, amount in advances.items():
        made.advance(amount, 100.0 + int(name[1:]))
    return made


def test_status() -> None:
    """Bytes, percent, rate and time left with a total; otherwise the time so far and what happens."""
    assert task(None).status(112.4) == "12 s"
    assert task(1000).status(101.0) == "0 B of 1.0 kB, 0 %, 1 s"
    known = task(1_200_000_000, s2=200_000_000, s4=212_000_000)
    assert known.status(104.0) == "412.0 MB of 1.2 GB, 34 %, 103.0 MB/s, 8 s left"
    assert task(100, s1=120).status(102.0) == "120 B of 100 B, 100 %, 60 B/s, 2 s"
    unknown = task(None, s2=4_000_000)
    unknown.doing = "creating tarball"
    assert unknown.status(104.0) == "4.0 MB, 1.0 MB/s, 4 s, creating tarball"
    assert task(None, "files", s2=3).status(102.0) == "3 files, 2 s"
    assert task(40, "packages", s2=10).status(102.0) == "10 of 40 packages, 25 %, 6 s left"
    assert task(None).status(100 + 75) == "1 min 15 s" and task(None).status(100 + 7300) == "2 h 1 min"


def test_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets a line when nothing was printed for a while; it ends with the task."""
    monkeypatch.setattr(live, "QUIET_S", 0.02)
    output = Output()
    lines: list[str] = []
    with working(output, "outer"), working(output, "unpacking [x]", 2_000_000):
        output.advance("unpacking [x]", 500_000)
        output.doing("unpacking [x]", "layer 3")
        until(lambda: lines.append(capsys.readouterr().err) or "".join(lines).count(", layer 3\n") > 1)
    first = next(line for line in "".join(lines).splitlines() if line.endswith(", layer 3"))
    assert first.startswith("unpacking [x]: 500.0 kB of 2.0 MB, 25 %")
    until(lambda: not activity_threads())
    capsys.readouterr()
    output.advance("unpacking [x]", 1)  # late calls do nothing
    output.doing("unpacking [x]", "nothing")
    output.finish("unpacking [x]")
    assert capsys.readouterr() == ("", "")


def test_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet shows nothing; --json keeps standard output for the document."""
    monkeypatch.setattr(live, "QUIET_S", 0.001)
    with working(Output(quiet=True), "x"):
        assert not activity_threads()
    err: list[str] = []
    with working(Output(as_json=True), "x"):
        until(lambda: err.append(capsys.readouterr().err) or "".join(err))
    assert re.search(r"^x: \d.*\n", "".join(err)) and capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [ConfigError("broken"), KeyboardInterrupt(), ValueError("a bug")])
def test_error(error: BaseException) -> None:
    """Whatever ends a command ends the display before the message."""

    @click.command()
    @click.pass_context
    def fail(ctx: click.Context) -> None:
        output = Output()
        ctx.call_on_close(output.close)
        output.start("never finished")
        raise error

    assert run(fail, []) in (3, 70, 130)
    until(lambda: not activity_threads())


@pytest.mark.parametrize("width", [40, 120])
def test_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest task has one line, not wider than the terminal; it makes room for other lines."""
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(live, "_REFRESH_S", 0.001)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    output = Output()
    with working(output, "outer"), working(output, "base\x1b debian:bookworm", 1_200_000_000, "B"):
        until(lambda: "debian" in file.getvalue())
        output.note("a note")
    assert file.getvalue().endswith("\r\x1b[K") or file.getvalue().endswith("a note\n")
    shown = [line for part in file.getvalue().split("\r\x1b[K") for line in part.splitlines()]
    assert "a note" in shown and all(len(line) < width for line in shown)
    assert any(line.startswith("base\\x1b debian:bookworm: 0 B") for line in shown)
    assert any(line.endswith("...") for line in shown) == (width == 40)
