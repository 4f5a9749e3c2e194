"""Lets a command use builder's own input and output, in a process group of its own.

The processes of a container may be the user's own. In the process group of builder's caller,
``kill(0, SIGKILL)`` of one would end the caller. So a command gets a new session where there is no
terminal. Where there is one, it stays in the session, and builder does for it what a shell does for
its jobs (credentials(7), tcsetpgrp(3))::

    start               the command gets the terminal, if builder has it and nothing is piped
    Ctrl-C, Ctrl-\\      go to the command alone while it has the terminal
    Ctrl-Z              stops the command; then builder stops its own group until fg or bg
    SIGTTIN, SIGTTOU    the command needs the terminal: it gets it as soon as builder has it
    SIGTERM and others  that builder receives are passed on; SIGCONT, too: of several processes one
                        may stop while another is continued
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator

_PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTSTP, signal.SIGWINCH, signal.SIGCONT),
)


#: In place of a descriptor: there is no terminal.
NO_TERMINAL = -1


def open_terminal() -> int:
    """Open this session's terminal, whatever input and output are; else :data:`NO_TERMINAL`."""
    with contextlib.suppress(OSError):
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    return NO_TERMINAL


def wait_for(process: subprocess.Popen[bytes], terminal: int) -> None:
    """Wait for a command that leads its own process group.

    A Ctrl-C that ended it reaches builder and its caller, too.
    """
    has_it = _is_ours(terminal) and os.isatty(0) and os.isatty(1)
    with _passing_on(process), contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored
        if has_it:
            _give(terminal, process.pid)
        while (number := _stopped_by(process)) is not None:
            if terminal != NO_TERMINAL:  # else whoever sent the signal may continue it
                has_it = _stop_with(process, terminal, number, has_it)
    if has_it:
        _give(terminal, os.getpgrp())
        if process.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
            os.kill(0, signal.SIGINT)


def _stop_with(process: subprocess.Popen[bytes], terminal: int, number: int, has_it: bool) -> bool:
    """Stop as the command did, until a shell continues builder; then continue the command.

    Returns:
        whether it has the terminal now.
    """
    needs_it = number in (signal.SIGTTIN, signal.SIGTTOU)
    if has_it:
        _give(terminal, os.getpgrp())
    if not needs_it or not _is_ours(terminal):
        _stop_own_group()
    has_it = (has_it or needs_it) and _is_ours(terminal)
    if has_it:
        _give(terminal, process.pid)
    os.killpg(process.pid, signal.SIGCONT)
    return has_it


def _stopped_by(process: subprocess.Popen[bytes]) -> int | None:
    """Wait until a process stops and return the signal; None: it has ended."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return os.WSTOPSIG(status)
    process.returncode = os.waitstatus_to_exitcode(status)
    return None


def _stop_own_group() -> None:
    """Stop builder and its caller as Ctrl-Z does; return when a shell continues them.

    Where no shell would, the kernel ignores it: the group is orphaned. The SIGCONT that ends it is
    not passed on: the command would read before it has the terminal, and the SIGTTIN that stops it
    could meet the next SIGCONT between two of its processes.
    """
    numbers = (signal.SIGTSTP, signal.SIGCONT)
    handlers = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    os.kill(0, signal.SIGTSTP)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def _is_ours(terminal: int) -> bool:
    """Return whether builder's process group is in the foreground of a terminal."""
    with contextlib.suppress(OSError):  # it was closed, or there is none
        return os.tcgetpgrp(terminal) == os.getpgrp()
    return False


def _give(terminal: int, group: int) -> None:
    """Put a process group into the foreground, also from the background."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    with contextlib.suppress(OSError):  # the terminal was closed, or the group has ended
        os.tcsetpgrp(terminal, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Send the signals that builder gets to a command and its group.

    Python handles signals in the main thread only; those that builder ignores are left alone.
    """

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    handlers = {number: signal.getsignal(number) for number in _PASSED_ON}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
