"""What runs now: the state of a task, lines in a log, a display in a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from builder.cli import live, run
from builder.cli.live import LiveTask
from builder.cli.output import Output
from builder.core.errors import ConfigError
from builder.core.progress import working
from tests.support.project import TinyProject
from tests.support.terminal import Shown, in_terminal
from tests.support.waiting import until


def activity_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "activity"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    until(lambda: not activity_threads())


def task(total: int | None, unit: str = "B", done: int = 0) -> LiveTask:
    """A task that began at 100 s."""
    made = LiveTask("x", total, unit, 100.0)
    made.done = done
    return made


def test_status() -> None:
    """Bytes, percent, rate and time left with a total; otherwise the time so far and what happens."""
    assert task(None).status(112.4) == "12 s"
    assert task(1000).status(101.0) == "0 B of 1.0 kB, 0 %, 1 s"
    known = task(1_200_000_000, done=412_000_000)
    assert known.status(104.0) == "412.0 MB of 1.2 GB, 34 %, 103.0 MB/s, 8 s left"
    assert task(100, done=120).status(102.0) == "120 B of 100 B, 100 %, 60 B/s, 2 s"
    unknown = task(None, done=4_000_000)
    unknown.doing = "creating tarball"
    assert unknown.status(104.0) == "4.0 MB, 1.0 MB/s, 4 s, creating tarball"
    assert task(None, "files", done=3).status(102.0) == "3 files, 2 s"
    assert task(40, "packages", done=10).status(102.0) == "10 of 40 packages, 25 %, 6 s left"
    assert task(None).status(100 + 75) == "1 min 15 s" and task(None).status(100 + 7300) == "2 h 1 min"


def test_rate() -> None:
    """The rate is that of the last 15 seconds of a display, which asks eight times a second."""
    made = task(10_000)
    for eighth in range(1, 8 * 60):
        made.done += 1 if eighth < 8 * 40 else 10
        line = made.status(100.0 + eighth / 8)
    assert ", 80 B/s, " in line


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


# in a terminal --------------------------------------------------------------------------------------------

#: The begin of a program; it waits for the newline that the test types.
HEAD = """
import sys, threading
from builder.cli.output import Output
from builder.core.progress import working
output = Output(quiet="quiet" in sys.argv, as_json="json" in sys.argv)
"""
#: Three tasks, the last with a total; prints while they are shown.
TASKS = (
    HEAD
    + """
with working(output, "outer"), working(output, "inner"):
    with working(output, "base\\x1b [red]debian[/red] :smile:", 1_200_000_000):
        output.advance("base\\x1b [red]debian[/red] :smile:", 300_000_000)
        output.doing("base\\x1b [red]debian[/red] :smile:", "unpacking dpkg")
        input()
        output.note("a note")
        output.text("a result")
        input()
output.note("the end")
"""
)
NAME = "base\\x1b [red]debian[/red] :smile:"


def show(
    program: str, *words: str, columns: int = 80, after: tuple[tuple[str, str], ...] = (), **env: str
) -> Shown:
    return in_terminal([sys.executable, "-c", program, *words], columns=columns, after=after, env=env)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_display(columns: int) -> None:
    """It has name, amounts, rate, time left, what happens, and how many others run; a bar below.

    It makes room for what is printed, and nothing of it stays. Lines are not wider than the terminal; the
    names of tasks are no markup and no escapes.
    """
    shown = show(TASKS, columns=columns, after=(("unpacking", "\n"), ("a result", ""), ("unpacking", "\n")))
    assert shown.code == 0 and shown.screen == ["a note", "a result", "the end"]
    words = " ".join(shown.text.split())
    assert f"{NAME}: 300.0 MB of 1.2 GB, 25 %, " in words
    assert re.search(r"25 %, [\d.]+ .?B/s, [\d. mins]+ left, unpacking dpkg \(and 2 more\)", words)
    assert "━" * 10 in shown.text
    lines = re.split(r"[\r\n]|\x1b\[\d*[AK]", shown.text)
    assert max(map(len, lines)) <= columns
    assert "\x1b[?25" not in shown.raw, "a builder that is killed does not leave the cursor hidden"


def test_threads() -> None:
    """What many threads print beside the display is complete, each line by itself."""
    program = HEAD + (
        "def talk(name):\n"
        "    for count in range(50):\n"
        "        output.note(f'note {name} {count}')\n"
        "        output.text(f'text {name} {count}')\n"
        "        output.advance('x', 1)\n"
        "with working(output, 'x', 200, ''):\n"
        "    input()\n"
        "    for one in [threading.Thread(target=talk, args=(n,)) for n in range(4)]: one.start()\n"
        "    while threading.active_count() > 2: pass\n"
        "    output.advance('x', 0)\n"
        "    input()\n"
    )
    shown = show(program, after=(("x: 0 of 200", "\n"), ("200 of 200", "\n")))
    expected = [f"{kind} {name} {n}" for kind in ("note", "text") for name in range(4) for n in range(50)]
    assert sorted(shown.screen) == sorted(expected)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain(env: dict[str, str]) -> None:
    """NO_COLOR leaves no colours; a dumb terminal gets lines, as a log does."""
    program = "from builder.cli import live; live.QUIET_S = 0.05" + TASKS
    shown = show(program, after=(("unpacking", "\n"), ("a result", ""), ("unpacking", "\n")), **env)
    assert not re.search(r"\x1b\[[\d;]*3[0-7]|\x1b\[[\d;]*9[0-7]", shown.raw)
    if "TERM" in env:
        assert "\x1b" not in shown.raw and "\\x1b [red]" in shown.raw
    else:
        assert shown.screen == ["a note", "a result", "the end"]


def test_quiet_and_json_in_a_terminal() -> None:
    """--quiet shows no progress and no notes there either; a document is not mixed with a display."""
    prints = "output.result([{'one': 1}], 'one'); output.note('n')"
    program = HEAD + f"with working(output, 'x'):\n    input(); {prints}\n"
    quiet = show("print('go')" + program, "quiet", after=(("go", "\n"),))
    assert quiet.raw == "go\r\none\r\n"
    document = show(program, "json", after=(("x: 0 s", "\n"),))
    assert json.loads("".join(document.screen[:-1])) == [{"one": 1, "schema": "error/1"}]
    assert document.screen[-1] == "n"


def test_ctrl_c() -> None:
    """After Ctrl-C the message is all that is on the screen."""
    program = (
        HEAD
        + """
import click, time
from builder.cli import run
@click.command()
@click.pass_context
def wait(ctx):
    ctx.call_on_close(output.close)
    with working(output, "waiting for long", 10):
        time.sleep(600)
sys.exit(run(wait, []))
"""
    )
    shown = show(program, after=(("waiting for long", "interrupt"),))
    assert shown.code == 130 and shown.screen[0].startswith("error: interrupted")
    assert not any("waiting" in line or "━" in line for line in shown.screen)


def test_terminal_closes(tmp_path: Path) -> None:
    """A command whose terminal is closed, as with nohup after a lost connection, ends as it would."""
    program = HEAD + (
        "import signal, pathlib, time\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with working(output, 'x', 10):\n"
        "    try: input()\n"
        "    except (EOFError, OSError): pass\n"
        "    time.sleep(0.5)\n"
        "    output.note('a note')\n"
        "output.warn('a warning')\n"
        f"pathlib.Path({str(tmp_path / 'done')!r}).touch()\n"
    )
    show(program, after=(("x: 0 B", "close"),))
    assert (tmp_path / "done").exists()


def test_no_stderr() -> None:
    """A command whose stderr is closed works: no file that it opens becomes the stderr of programs."""
    command = f"{sys.executable} -c 'from builder.__main__ import main; main()' sites 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "perlmutter" in done.stdout


def test_rich_is_imported_late(copy: TinyProject) -> None:
    """Only a task in a terminal needs rich: no list, no help, no build with nothing changed, no pipe."""
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('rich' in sys.modules))\n"
        "from builder.__main__ import main\nmain()"
    )

    def lines(*words: str) -> list[str]:
        command = [sys.executable, "-c", program, *words]
        shown = in_terminal(command, cwd=copy.root, env=copy.variables())
        assert shown.code == 0, shown.text
        return shown.screen

    assert [lines(*words)[-1] for words in (["--help"], ["targets"], ["build"])] == ["False"] * 3
    first = [line for line in lines("build")[:-1] if "built in" not in line]
    assert first == [line for line in lines("build")[:-1] if "built in" not in line]
