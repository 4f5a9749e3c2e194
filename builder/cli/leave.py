"""Ends the process with an exit code."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

from builder.build.run.leftovers import remove_loaded


def leave(code: int) -> NoReturn:
    """End the process with ``code``, after the images that it loaded into engines are removed.

    This function does what the interpreter does at its end (waits for threads, runs the atexit
    functions, flushes stdout and stderr), and then ends the process without destroying the
    interpreter. That takes 0.1 s of a build with nothing changed. And native threads of libraries
    may outlive their calls and hold Python objects (py-rattler 0.28 and 0.29): an interpreter that
    takes these away is killed by such a thread, "Fatal Python error: PyGILState_Release" or a
    segmentation fault instead of the exit code.
    """
    with contextlib.suppress(KeyboardInterrupt):  # the engine goes on without builder
        remove_loaded()  # not at exit: from Python 3.12 on, no thread that shows progress can start there
    _flush(sys.stdout)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    _flush(sys.stdout)
    _flush(sys.stderr)
    os._exit(code)


def _flush(stream: object) -> None:
    """Write out what a stream has buffered.

    A stream that cannot be written to is not an error: it was already reported, or the reader
    closed the pipe. It then leads to /dev/null, because Python would report it again.
    """
    try:
        stream.flush()  # type: ignore[attr-defined]
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[attr-defined]
