"""Ctrl-C at moments when Python would lose it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_START = """
import functools, signal, threading, time, weakref
from builder import interrupts
from builder.interrupts import catch_ctrl_c

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


@pytest.mark.parametrize(("n", "method"), [(1, "acquire"), (0, "release")])
def test_while_futures_are_locked(n: int, method: str) -> None:
    """``concurrent.futures.wait`` locks all futures and frees them again, so that their threads can go on."""
    program = f"""
    from concurrent.futures import Future, wait
    futures = sorted((Future(), Future()), key=id)  # wait takes them in this order
    condition, other = futures[{n}]._condition, futures[{1 - n}]
    condition.acquire = condition.release = int  # does nothing
    condition.{method} = functools.partial(signal.raise_signal, signal.SIGINT)
    try:
        catch_ctrl_c()
        wait(futures, timeout=0)
        time.sleep(110)
    except KeyboardInterrupt:
        thread = threading.Thread(target=other.set_result, args=[1], daemon=True)
        thread.start()
        thread.join(10)
        print("locked" if thread.is_alive() else "free")
    """
    assert run(program) == ["free"]


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
    """Whoever handles Ctrl-C when it is repeated gets it, as ``builder.run.process`` while it starts one."""
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
