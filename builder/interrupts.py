"""Ctrl-C, also where Python would lose it."""

from __future__ import annotations

import atexit
import signal
import sys
from types import FrameType

#: Seconds until a Ctrl-C that came at a wrong moment is tried again.
_LATER_S = 0.01
#: Functions that acquire or release a lock. Those named with one underscore are ``threading.Condition``'s.
_HOLD_LOCKS = ("__enter__", "__exit__", "_acquire_restore", "_release_save")
#: The signals of this process so far.
_CAME: list[int] = []


def catch_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt in the main thread, at a moment when it ends the process.

    Python raises it wherever the thread is. Within an import it may then leave the lock of all
    imports held, and threads that import wait forever. Within ``__enter__`` or ``__exit__`` the
    same may happen to locks of the standard library: ``concurrent.futures.wait`` holds those of all
    futures for a moment. In ``__del__`` and in the callback of a weak reference it is printed and
    forgotten. In all these cases, the alarm clock (SIGALRM) repeats it.

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
    turns KeyboardInterrupt into an error of its own. The alarm clock of a process that does not use
    :func:`catch_ctrl_c` is left alone.
    """
    if signal.getsignal(signal.SIGALRM) is _repeat:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return bool(_CAME)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _CAME.append(number)
    if frame is not None and _may_hold_lock(frame):
        _later()
    else:
        raise KeyboardInterrupt


def _may_hold_lock(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_filename.startswith("<frozen importlib") or code.co_name in _HOLD_LOCKS


def _later() -> None:
    signal.setitimer(signal.ITIMER_REAL, _LATER_S)


def _repeat(number: int, frame: FrameType | None) -> None:
    """Ctrl-C once more, for what handles it now."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        _later()
    else:
        sys.__unraisablehook__(ignored)
