"""Runs commands of the host: captures their output, and ends them with all their children."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from builder.core.errors import RunnerError

from .foreground import NO_TERMINAL, open_terminal, wait_for

log = logging.getLogger(__name__)

#: The return code of a command that exceeded its time limit, as with timeout(1).
TIMED_OUT = 124
#: Seconds that a process has to end after SIGTERM, before it gets SIGKILL.
GRACE_PERIOD_S = 5.0
#: Bytes of each output of a command, which are held in memory. A smoke report has less than 1 MiB.
MAX_OUTPUT = 64 << 20


#: A program and its arguments.
Words = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command."""

    returncode: int
    """128 + n for a command that signal n ended; :data:`TIMED_OUT` with ``timed_out``."""
    stdout: str
    """Empty if the output was not captured."""
    stderr: str
    timed_out: bool = False


def execute(
    command: Words,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    capture: bool = True,
    pass_fds: Sequence[int] = (),
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a command of the host; a timeout, Ctrl-C or an error kills it and its children.

    Args:
        command: The program and its arguments.
        env: The complete environment; None is that of this process.
        timeout_s: Seconds; None is no limit.
        capture: False leaves input and output connected to this process's own, see
            :mod:`.foreground`.
        pass_fds: File descriptors that the command inherits.
        on_line: Receives each line of standard error without its end, from another thread.

    Raises:
        RunnerError: The command cannot be started, or an output is longer than :data:`MAX_OUTPUT`.
    """
    log.debug("run %s", shlex.join(str(word) for word in command))
    process: subprocess.Popen[bytes] | None = None
    readers: list[_OutputReader] = []
    terminal = NO_TERMINAL if capture else open_terminal()
    try:
        with _ctrl_c_waits():
            process = _start(command, env, capture, pass_fds, terminal)
            outputs = ((process.stdout, ProcessOutput()), (process.stderr, ProcessOutput(on_line)))
            readers += [_OutputReader(stream, process, out) for stream, out in outputs if stream]
        if not capture and timeout_s is None:
            wait_for(process, terminal)
        timed_out = not _wait(process, readers, timeout_s)
    finally:  # also after Ctrl-C
        if process:
            _end(process, readers)
        if terminal != NO_TERMINAL:
            os.close(terminal)

    if timed_out:  # a child outside the group may still hold the outputs open
        _wait(process, readers, GRACE_PERIOD_S)
    return _result(str(command[0]), process.returncode, readers, timed_out)


def _result(
    program: str, code: int, readers: Sequence[_OutputReader], timed_out: bool
) -> Completed:
    for reader in readers:
        reader.output.check(program)
    out, err = (reader.output.text for reader in readers) if readers else ("", "")
    if timed_out:
        return Completed(TIMED_OUT, out, err, timed_out=True)
    log.debug("exit code %d of %s%s", code, program, f":\n{err}" if code else "")
    return Completed(128 - code if code < 0 else code, out, err)


def _start(
    command: Words,
    env: Mapping[str, str] | None,
    capture: bool,
    pass_fds: Sequence[int],
    terminal: int,
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE if capture else None
    try:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL if capture else None,
            stdout=pipe,
            stderr=pipe,
            env=None if env is None else dict(env),
            # Both can be killed as a group, and a command cannot kill builder's. One that reads
            # from the terminal must stay in builder's session.
            start_new_session=terminal == NO_TERMINAL,
            process_group=None if terminal == NO_TERMINAL else 0,
            pass_fds=pass_fds,
        )
    except OSError as e:
        hint = "install it, or see builder doctor"
        raise RunnerError(f"cannot run {command[0]}: {e.strerror}", hint) from None


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block: within ``Popen``, the new process would be lost.

    Python runs signal handlers in the main thread only.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


class ProcessOutput:
    """One output of a command, held in memory; ``on_line`` receives its lines as they come."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self.data = bytearray()
        self._on_line = on_line
        self._passed_on = 0

    @property
    def too_long(self) -> bool:
        """Whether it is longer than :data:`MAX_OUTPUT`."""
        return len(self.data) > MAX_OUTPUT

    def check(self, program: str) -> None:
        """Raise RunnerError if it is too long, and the program was killed for that."""
        if self.too_long:
            message = f"{program} wrote more than {MAX_OUTPUT >> 20} MiB, and was killed"
            raise RunnerError(message, "see what it prints: builder run TARGET -- COMMAND")

    @property
    def text(self) -> str:
        """The output so far."""
        return self.data.decode(errors="replace")

    def add(self, block: bytes) -> None:
        """Add a block of the output, and pass on the lines that are complete."""
        searched = len(self.data)
        self.data += block
        end = self.data.rfind(b"\n", searched) + 1
        if self._on_line is not None and end:
            for line in self.data[self._passed_on : end].decode(errors="replace").splitlines():
                self._on_line(line)
            self._passed_on = end


class _OutputReader(threading.Thread):
    """Reads an output of a process to its end; kills the process if it is longer than allowed."""

    def __init__(
        self, stream: IO[bytes], process: subprocess.Popen[bytes], output: ProcessOutput
    ) -> None:
        super().__init__(daemon=True)  # a process that left the group may never close the output
        self.output = output
        self._stream = stream
        self._process = process
        self.start()

    def run(self) -> None:
        with self._stream as stream:
            while block := os.read(stream.fileno(), 1 << 16):
                self.output.add(block)
                if self.output.too_long:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self._process.pid, signal.SIGKILL)
                    return


def _wait(
    process: subprocess.Popen[bytes], readers: Sequence[_OutputReader], timeout_s: float | None
) -> bool:
    """Wait for the end of a process and its outputs; return False after the time limit."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    for reader in readers:
        reader.join(None if end is None else max(0.0, end - time.monotonic()))
        if reader.is_alive():
            return False
    try:
        process.wait(None if end is None else max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes], readers: Sequence[_OutputReader]) -> None:
    """Send SIGTERM, then SIGKILL, to the group of a process, unless it and its outputs have ended.

    When its leader has ended, its children may not have.
    """
    if process.poll() is not None and not any(reader.is_alive() for reader in readers):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_PERIOD_S)


def reason(done: Completed) -> str:
    """Return the first line of standard error that is not empty, or what is known without one."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    silent = "it did not answer in time" if done.timed_out else "no reason given"
    return lines[0] if lines else silent


def tail(lines: Iterable[str], count: int = 15) -> str:
    """Return the last lines that are not empty, indented, for an error message."""
    written = [line for line in lines if line.strip()]
    return "\n".join(f"    {line.rstrip()}" for line in written[-count:])
