"""Ends the process with an exit code."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

from builder.run.leftovers import remove_loaded

#: Libraries whose native threads outlive their calls and may hold Python objects (py-rattler 0.28 and 0.29).
#: An interpreter that ends normally takes these objects away, and such a thread then kills the process:
#: "Fatal Python error: PyGILState_Release" or a segmentation fault instead of the exit code.
_NATIVE_THREADS = ("rattler",)


def leave(code: int) -> NoReturn:
    """Ends the process with ``code``, after the images that it loaded into engines are removed.

    After a library with native threads was used, this function does what the interpreter does at its end
    (waits for threads, runs the atexit functions, flushes stdout and stderr), and then ends the process
    without destroying the interpreter.
    """
    with contextlib.suppress(KeyboardInterrupt):  # the engine goes on without builder
        remove_loaded()  # not at exit: from Python 3.12 on, no thread that shows progress can start there
    _flush(sys.stdout)
    if not any(name in sys.modules for name in _NATIVE_THREADS):
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    _flush(sys.stdout)
    _flush(sys.stderr)
    os._exit(code)


def _flush(stream: object) -> None:
    """Writes out what a stream has buffered.

    A stream that cannot be written to is not an error: it was already reported, or the reader closed the
    pipe. It then leads to /dev/null, because Python would report it again.
    """
    try:
        stream.flush()  # type: ignore[attr-defined]
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[attr-defined]
