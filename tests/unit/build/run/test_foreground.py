"""Commands that use builder's own terminal, or its input and output without one. Shells are real."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.build.run.userns import UsernsRunner
from builder.core.settings import Settings
from builder.core.workspace import Workspace
from tests.support.parts import need, part_missing
from tests.support.rootfs import make_rootfs
from tests.support.waiting import until

#: Runs its arguments as ``builder run`` runs a command, and prints the exit code.
RUN = """
import sys
from builder.build.run.process import execute
print("code", execute(sys.argv[1:], capture=False).returncode, flush=True)
"""
#: The same in a container of the user-namespace runner.
RUN_IN_CONTAINER = """
import os, sys
from builder.build.run.base import RunOptions
from builder.build.run.userns import _Plan, _start
plan = _Plan(sys.argv[1], os.getuid(), os.getgid(), command=sys.argv[2:], env={"PATH": "/bin"})
print("code", _start(plan, RunOptions(capture=False)).returncode, flush=True)
"""
#: The same, with a terminal that is slow to change hands, for :data:`ON_SIGCONT`.
SLOWLY = """
import time
from builder.build.run import foreground
give = foreground._give
foreground._give = lambda *arguments: (time.sleep(0.5), give(*arguments))
"""
#: Tells whether it has the terminal when it is continued.
ON_SIGCONT = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
while os.tcgetpgrp(0) != os.getpgrp():
    pass
print("begun", flush=True)
signal.sigwait([signal.SIGCONT])
print("has it:", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
"""
CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x04", "\x1a", "\x1c"


class Terminal:
    """A terminal with a shell in it, in a session of its own."""

    def __init__(self, *words: str) -> None:
        self._output, self._seen = "", 0
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ |= {"PS1": "prompt:$?> ", "TERM": "dumb"}
            os.execvp(words[0], words)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while block := os.read(self._fd, 1 << 16):
                self._output += block.decode(errors="replace")

    @property
    def shown(self) -> str:
        """What is shown since the last :meth:`wait_for`."""
        return self._output[self._seen :]

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> None:
        """Waits until a text is shown, and forgets what was shown up to it."""
        try:
            until(lambda: text in self.shown, 60)
        except AssertionError:
            pytest.fail(f"{text!r} is not shown: {self.shown!r}")
        self._seen = self._output.index(text, self._seen) + len(text)

    def stop(self) -> None:
        """Types Ctrl-Z, and waits until the shell of the command has stopped, too.

        builder and its caller may know of it earlier, if the command has several processes.
        """
        self.type(CTRL_Z)
        self.wait_for("Stopped")
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        """Waits until the shell of the command has stopped."""
        until(self._has_stopped, 60)

    def _has_stopped(self) -> bool:
        states = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                pid, _, rest = path.read_text().partition(" (bash) ")
                state, _, _, session, *_ = rest.split() if rest else [""] * 4
                states += [state] if session == str(self.pid) != pid else []
        return set(states) == {"T"}

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._fd)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=["host", "container"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Returns the line of a shell that runs a script on the host or in a container."""
    words = [sys.executable, "-c", RUN]
    need("bash")
    if request.param == "container":
        settings = Settings(tmp_path / "cache", tmp_path / "tmp", jobs=1)
        if problem := UsernsRunner(Workspace.of(settings)).available():
            part_missing(problem)
        root = make_rootfs(tmp_path / "root", ["bash", "sh", "cat", "sleep"])
        words = [sys.executable, "-c", RUN_IN_CONTAINER, str(root)]
    return lambda script: shlex.join([*words, "bash", "-c", script])


@pytest.fixture
def prompt() -> Iterator[Terminal]:
    """A shell with job control, which does not echo what is typed."""
    terminal = Terminal("bash", "--norc", "--noediting", "-i")
    terminal.wait_for("prompt:0> ")
    terminal.type("stty -echo\n")
    terminal.wait_for("prompt:0> ")
    yield terminal
    terminal.close()


@pytest.fixture
def scripts() -> Iterator[Callable[[str], Terminal]]:
    """Starts scripts in terminals, without job control."""
    with contextlib.ExitStack() as open_ones:

        def start(script: str) -> Terminal:
            terminal = Terminal("sh", "-c", script)
            open_ones.callback(terminal.close)
            return terminal

        yield start


def without_terminal(script: str) -> subprocess.Popen[str]:
    """Starts a script in a session without a terminal."""
    return subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_group_without_terminal(line: Callable[[str], str]) -> None:
    """A container cannot kill who has called builder."""
    caller = without_terminal(f"{line('kill -KILL 0')}; echo survived")
    assert caller.communicate()[0] == "code 137\nsurvived\n"


def test_group(scripts: Callable[[str], Terminal], line: Callable[[str], str]) -> None:
    caller = scripts(f"{line('kill -KILL 0')}; echo survived")
    caller.wait_for("code 137")
    caller.wait_for("survived")


def test_reading(prompt: Terminal, line: Callable[[str], str]) -> None:
    """A command reads what is typed, and leaves the terminal to the shell."""
    prompt.type(line("echo begun; cat; echo end") + "\n")
    prompt.wait_for("begun")
    prompt.type("hello\n")
    prompt.wait_for("hello")
    prompt.type(CTRL_D)
    for text in ("end", "code 0", "prompt:0> "):
        prompt.wait_for(text)


def test_ctrl_c(prompt: Terminal, line: Callable[[str], str]) -> None:
    """It ends the command and builder; a command that handles it goes on, and builder with it."""
    prompt.type(line("echo begun; sleep 1000") + "\n")
    prompt.wait_for("begun")
    prompt.type(CTRL_C)
    prompt.wait_for("prompt:130> ")
    handles = "trap 'echo caught' INT; echo begun; until read line; do :; done; echo got $line"
    prompt.type(line(handles) + "\n")
    prompt.wait_for("begun")
    prompt.type(CTRL_C)
    prompt.wait_for("caught")
    prompt.type("x\n")
    prompt.wait_for("got x")
    prompt.wait_for("code 0")


def test_ctrl_c_of_a_script(scripts: Callable[[str], Terminal], line: Callable[[str], str]) -> None:
    """It also ends the script that called builder."""
    caller = scripts(f"{line('echo begun; sleep 1000')}; echo reached")
    caller.wait_for("begun")
    caller.type(CTRL_C)
    until(lambda: os.waitid(os.P_PID, caller.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    assert "reached" not in caller.shown


def test_ctrl_backslash(prompt: Terminal, line: Callable[[str], str]) -> None:
    prompt.type(line("ulimit -c 0; echo begun; exec sleep 1000") + "\n")
    prompt.wait_for("begun")

    def ended() -> bool:
        """Before it waits, builder itself ends; bash ignores it."""
        prompt.type(CTRL_BACKSLASH)
        return "code 131" in prompt.shown or "prompt:131> " in prompt.shown

    until(ended)


def test_ctrl_z(prompt: Terminal, line: Callable[[str], str]) -> None:
    """The shell has the terminal until fg; with bg the command goes on until it reads."""
    prompt.type(line("echo begun; read a; echo got $a; read a; echo got $a") + "\n")
    prompt.wait_for("begun")
    prompt.stop()
    prompt.type("echo at the prompt\n")
    prompt.wait_for("at the prompt")
    prompt.type("fg\n")
    prompt.type("x\n")
    prompt.wait_for("got x")
    prompt.stop()
    prompt.type("bg\n")
    prompt.wait_for("prompt:0> ")
    prompt.wait_until_stopped()
    prompt.type("fg\n")
    prompt.type("y\n")
    prompt.wait_for("got y")
    prompt.wait_for("code 0")


def test_fg_gives_the_terminal_first(prompt: Terminal) -> None:
    """What is continued before it has the terminal is stopped again, and of two processes perhaps one."""
    words = [sys.executable, "-c", SLOWLY + RUN, sys.executable, "-c", ON_SIGCONT]
    prompt.type(shlex.join(words) + "\n")
    prompt.wait_for("begun")
    prompt.type(CTRL_Z)
    prompt.wait_for("Stopped")
    prompt.type("fg\n")
    prompt.wait_for("has it: True")
    prompt.wait_for("code 0")


def test_background(prompt: Terminal, line: Callable[[str], str]) -> None:
    """A command that begins there reads only after fg; then Ctrl-C is for it."""
    prompt.type(line("echo begun; read a; echo got $a; sleep 1000") + " &\n")
    prompt.wait_for("begun")
    prompt.wait_until_stopped()
    prompt.type("fg\n")
    prompt.type("x\n")
    prompt.wait_for("got x")
    prompt.type(CTRL_C)
    prompt.wait_for("prompt:130> ")


def test_pipe(prompt: Terminal, line: Callable[[str], str]) -> None:
    """The other end of a pipe, as less, may read from the terminal; Ctrl-C and Ctrl-Z are for both."""
    ticks = line("while :; do echo tick; sleep 0.1; done")
    prompt.type(f"{ticks} | (read a; read b </dev/tty; echo typed $b; cat)\n")
    prompt.type("x\n")
    prompt.wait_for("typed x")
    prompt.type(CTRL_Z)
    prompt.wait_for("prompt:148> ")
    prompt.type("fg\n")
    prompt.wait_for("\r\ntick")
    prompt.type(CTRL_C)
    prompt.wait_for("prompt:130> ")


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    mask = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[0]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_signals(line: Callable[[str], str]) -> None:
    """What builder gets, as from timeout or Slurm, the command gets once."""
    script = "trap 'echo term' TERM; trap 'echo usr1; exit 3' USR1; echo begun; while :; do sleep 0.1; done"
    builder = without_terminal(f"exec {line(script)}")
    assert builder.stdout is not None and builder.stdout.readline() == "begun\n"
    until(lambda: handles(builder.pid, signal.SIGTERM))
    builder.send_signal(signal.SIGTERM)
    assert builder.stdout.readline() == "term\n"
    builder.send_signal(signal.SIGUSR1)
    assert builder.communicate()[0] == "usr1\ncode 3\n"
