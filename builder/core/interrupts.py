"""Ctrl-C, also where Python would lose it."""

from __future__ import annotations

import atexit
import signal
import sys
import time
from types import FrameType

#: Seconds until a Ctrl-C that came at a wrong moment is tried again.
_LATER_S = 0.01
#: Seconds after which another Ctrl-C ends the process: programs that pass one on may send it twice.
_AGAIN_S = 1.0
#: The times of Ctrl-C in this process.
_CAME: list[float] = []


def catch_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt in the main thread, at a moment when it ends the process.

    Python raises it wherever the thread is. Within an import it may then leave the lock of all
    imports held, and threads that import wait forever. In ``__del__`` and in the callback of a weak
    reference it is printed and forgotten. In these cases, the alarm clock (SIGALRM) repeats it.

    It may also leave a lock of ``threading`` held that a thread needs for its result. So
    :func:`builder.core.parallel.in_parallel` waits where no such lock is held. Where the main
    thread still waits forever, a second Ctrl-C ends the process at once, without cleaning up.

    A process that ignores Ctrl-C, as one that a shell started in the background, still does.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGALRM, _repeat)
        # An interpreter that ends gives signals their default actions, and SIGALRM would kill it
        atexit.register(signal.signal, signal.SIGALRM, signal.SIG_IGN)
        sys.unraisablehook = _unraisable


def take_interrupt() -> bool:
    """Return whether Ctrl-C came; one that waits for its repetition is not repeated.

    An exception may be its consequence: what was computed at that moment may be wrong, and pydantic
    turns KeyboardInterrupt into another error. The alarm clock of a process that does not use
    :func:`catch_ctrl_c` is left alone.
    """
    if signal.getsignal(signal.SIGALRM) is _repeat:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return bool(_CAME)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _CAME.append(time.monotonic())
    if _CAME[-1] - _CAME[0] > _AGAIN_S:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    _raise(frame)


def _raise(frame: FrameType | None) -> None:
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)
    else:
        raise KeyboardInterrupt


def _repeat(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for the last Ctrl-C, or pass it to what handles it now."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is _interrupt:
        _raise(frame)
    elif callable(handler):
        handler(signal.SIGINT, frame)


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)
    else:
        sys.__unraisablehook__(ignored)
