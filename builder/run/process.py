"""Runs commands of the host: captures their output, and ends them with all their children."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RunnerError

log = logging.getLogger(__name__)

#: The return code of a command that exceeded its time limit, as with timeout(1).
TIMED_OUT = 124
#: Seconds that a process has to end after SIGTERM, before it gets SIGKILL.
GRACE_PERIOD_S = 5.0


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
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    capture: bool = True,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Runs a command of the host. After a timeout, Ctrl-C or any error, it and its children are killed.

    Args:
        command: The program and its arguments.
        env: The complete environment; None is that of this process.
        timeout_s: Seconds; None is no limit.
        capture: False leaves input and output connected to this process's own.
        pass_fds: File descriptors that the command inherits.

    Raises:
        RunnerError: The command cannot be started.
    """
    pipe = subprocess.PIPE if capture else None
    log.debug("run %s", shlex.join(str(word) for word in command))
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL if capture else None,
            stdout=pipe,
            stderr=pipe,
            env=None if env is None else dict(env),
            # A new session can be killed as a group. A command that reads from the terminal must stay
            # in builder's session.
            start_new_session=capture,
            pass_fds=pass_fds,
        )
    except OSError as e:
        raise RunnerError(
            f"cannot run {command[0]}: {e.strerror}", "install it, or use another --runner"
        ) from None

    try:
        out, err = process.communicate(timeout=timeout_s)
        code = process.returncode
        log.debug("exit code %d of %s%s", code, command[0], f":\n{_text(err)}" if code and err else "")
        return Completed(128 - code if code < 0 else code, _text(out), _text(err))
    except subprocess.TimeoutExpired:
        _end(process, group=capture)
        out, err = _remaining_output(process)
        return Completed(TIMED_OUT, _text(out), _text(err), timed_out=True)
    except BaseException:
        _end(process, group=capture)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _remaining_output(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """The output of a process that has ended; a child outside its group may still hold the pipes open."""
    try:
        out, err = process.communicate(timeout=GRACE_PERIOD_S)
    except subprocess.TimeoutExpired as e:
        return e.stdout or b"", e.stderr or b""
    return out, err


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def _end(process: subprocess.Popen[bytes], *, group: bool) -> None:
    """Sends SIGTERM, then SIGKILL, to a process or its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        try:
            process.wait(GRACE_PERIOD_S)
        except subprocess.TimeoutExpired:
            continue
        if not group:
            return
        # The leader of the group has ended, but its children may not have: all of the group gets SIGKILL too.


def reason(text: str) -> str:
    """Returns the first line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason given"


def tail(lines: Iterable[str], count: int = 15) -> str:
    """Returns the last lines that are not empty, indented, for an error message."""
    written = [line for line in lines if line.strip()]
    return "\n".join(f"    {line.rstrip()}" for line in written[-count:])
