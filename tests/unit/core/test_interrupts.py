"""Ctrl-C at moments when Python would lose it, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

_START = """
import functools, signal, threading, time, weakref
from builder.core import interrupts
from builder.core.interrupts import catch_ctrl_c

class Last:  # an object whose end loses a Ctrl-C
    def __del__(self): signal.raise_signal(signal.SIGINT)
"""


def run(program: str) -> list[str]:
    """The words that a program prints, and nothing on stderr."""
    command = [sys.executable, "-c", _START + textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def wait_after(lines: str) -> list[str]:
    """:func:`run` for lines that press Ctrl-C, in a program that waits for it afterwards."""
    indented = textwrap.indent(textwrap.dedent(lines), "    ")
    end = "    time.sleep(110)\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    return run(f"try:\n    catch_ctrl_c()\n{indented}\n{end}")


@pytest.mark.parametrize(
    "lost",
    [
        "weakref.finalize(Thing(), signal.raise_signal, signal.SIGINT)",
        "kept = weakref.ref(Thing(), lambda _: signal.raise_signal(signal.SIGINT))",
        "Last()",
    ],
)
def test_moment_without_exceptions(lost: str) -> None:
    """Python prints and forgets what is raised there."""
    assert wait_after(f"class Thing: pass\n{lost}") == ["interrupted"]


def test_within_an_import() -> None:
    """The import goes on to its end, so that it leaves no lock behind."""
    lines = """
    text = "signal.raise_signal(signal.SIGINT); print('after')"
    exec(compile(text, "<frozen importlib._bootstrap>", "exec"))
    """
    assert wait_after(lines) == ["after", "interrupted"]


def test_while_threads_work() -> None:
    """At 50 moments of ``in_parallel``: its threads are never left waiting for a lock."""
    program = """
    from builder.core.parallel import in_parallel
    def work(n):
        if n == 20: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    catch_ctrl_c()
    interrupts._AGAIN_S = 1000
    for _ in range(50):
        try:
            in_parallel(work, range(40), 8)
            time.sleep(110)
        except KeyboardInterrupt:
            print("done")
    """
    assert run(program) == ["done"] * 50


def test_second_ctrl_c() -> None:
    """Ends the process at once, even if the first one has left a thread waiting forever."""
    program = """
    def press():
        for _ in range(2):
            time.sleep(0.5)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    interrupts._AGAIN_S = 0.1
    catch_ctrl_c()
    threading.Thread(target=press, daemon=True).start()
    while True:
        try: threading.Event().wait()
        except KeyboardInterrupt: print("first", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", _START + textwrap.dedent(program)], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"first\n")


def test_pressed_twice_at_once() -> None:
    """Programs that pass Ctrl-C on may send it twice: the command still cleans up."""
    lines = """
    try: signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt: signal.raise_signal(signal.SIGINT)
    """
    assert wait_after(lines) == ["interrupted"]


def test_error_after_a_lost_ctrl_c() -> None:
    """What was computed at that moment may be wrong: pydantic goes on with another pattern."""
    program = """
    import click, sys
    from builder.cli import run
    sys.stderr = sys.stdout
    @click.command()
    def command():
        Last()
        raise ValueError("a consequence")
    interrupts._LATER_S = 0.5  # no busy machine takes that long for the error
    catch_ctrl_c()
    code = run(command, [])
    time.sleep(1)
    print(code)
    """
    words = run(program)
    assert words[:2] == ["error:", "interrupted;"] and words[-1] == "130" and "consequence" not in words


def test_interpreter_that_ends() -> None:
    """SIGALRM does not kill it."""
    program = """
    import atexit
    class Slow:
        def __del__(self, sleep=time.sleep): sleep(1)
    interrupts._LATER_S = 0.5  # no busy machine takes that long from there to the end
    catch_ctrl_c()
    atexit.register(Last)
    kept = Slow()
    """
    assert run(program) == []


def test_ignored_before() -> None:
    """As in a process that a shell started in the background."""
    program = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    catch_ctrl_c()
    signal.raise_signal(signal.SIGINT)
    print("alive")
    """
    assert run(program) == ["alive"]


def test_handler_of_a_moment() -> None:
    """Whoever handles Ctrl-C when it is repeated gets it, as ``builder.build.run.process`` while it starts
    one."""
    program = """
    came = []
    catch_ctrl_c()
    Last()
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    while not came:
        time.sleep(0.01)
    print("came")
    """
    assert run(program) == ["came"]
