"""Commands of the host: run, ended as a whole, and what they printed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RunnerError

#: The return code of a command that was ended because it took too long (as timeout(1) has it).
TIMED_OUT = 124
#: Seconds between asking a process to end and ending it.
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command in an image ended; output as text, empty when it was not captured.

    ``returncode`` is 128 + n for a command that signal n ended, and 124 with ``timed_out``.
    """

    returncode: int
    stdout: str
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
    """Runs a command of the host; on time-out, Ctrl-C or any error it and what it started are ended.

    Raises:
        RunnerError: it cannot be started.
    """
    pipe = subprocess.PIPE if capture else None
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL if capture else None,
            stdout=pipe,
            stderr=pipe,
            env=None if env is None else dict(env),
            # Its own session, to be ended as a whole; but one that shares our terminal must stay in our session to read from it.
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
        return Completed(128 - code if code < 0 else code, _text(out), _text(err))
    except subprocess.TimeoutExpired:
        _end(process, group=capture)
        try:
            out, err = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired as e:  # something that got away still holds the pipes
            out, err = e.stdout or b"", e.stderr or b""
        return Completed(TIMED_OUT, _text(out), _text(err), timed_out=True)
    except BaseException:
        _end(process, group=capture)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def _end(process: subprocess.Popen[bytes], *, group: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
            if number == signal.SIGTERM and group:
                continue  # the leader has ended; what it started may not have
            return


def reason(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def tail(lines: Iterable[str], count: int = 15) -> str:
    """The last lines that say something, indented, for a message."""
    return "\n".join(f"    {line.rstrip()}" for line in [x for x in lines if x.strip()][-count:])
