"""Diagnostics: the log file of each command, and ``-v``/``-vv`` on stderr.

Every command writes a log, so that there is something to send after a failure: into ``logs/`` in
the cache, or the file that ``--log-file`` names. The newest 50 stay. :class:`_Redacted` formats
every line, so no credential reaches a log.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from builder.core.errors import BuilderError, UsageError
from builder.core.redact import redact
from builder.core.store.folders import CacheFolders
from builder.core.text import visible
from builder.core.version import __version__
from builder.formats.net.urlvariables import as_written

#: How many logs stay in the cache.
_LOGS = 50
#: A line of the file.
_LINE = "%(asctime)s %(levelname).1s %(threadName)s %(name)s: %(message)s"
#: The logger of the command's messages, which are on stderr anyway.
OUTPUT = "builder.output"
#: Libraries whose own messages help: their warnings, and everything at ``-vv`` and in the log file.
_LIBRARIES = ("httpx2", "docker")

log = logging.getLogger("builder")
log.addHandler(logging.NullHandler())  # what is logged before start_logging is not for stderr
_path: Path | None = None


def log_path() -> Path | None:
    """Return the log of this command; None if there is none yet, or it cannot be written."""
    return _path


class _Redacted(logging.Formatter):
    """A formatter that removes credentials from complete lines, including tracebacks, and shows
    control characters as escapes.
    """

    def format(self, record: logging.LogRecord) -> str:
        return visible(as_written(redact(super().format(record))))


class _Shown(logging.Handler):
    """Shows log lines between the messages of the command, which are on stderr anyway."""

    def __init__(self, verbosity: int, show: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG if verbosity > 1 else logging.INFO)
        level = "%(levelname).1s " if verbosity > 1 else ""
        self.setFormatter(_Redacted(f"{level}%(name)s: %(message)s"))
        self._show = show

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is shown."""
        is_own = record.name.startswith("builder")
        is_asked = self.level == logging.DEBUG or record.levelno >= logging.WARNING
        return record.name != OUTPUT and (is_own or is_asked)

    def emit(self, record: logging.LogRecord) -> None:
        """Show a line. A closed terminal ends no upload, and no tag's move."""
        with contextlib.suppress(OSError, ValueError):
            self._show(self.format(record).removeprefix("builder."))


class _File(logging.FileHandler):
    """A log file of this user only. One that cannot be written any more is closed, once."""

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        super().__init__(path, encoding="utf-8")
        self.setFormatter(_Redacted(_LINE))
        self._show = show

    def handleError(self, record: logging.LogRecord) -> None:
        """Report that the log ends; the command goes on. Python would print arguments of lines."""
        global _path
        _path = None
        self.mode = "w"  # so that it does not open the file again
        with contextlib.suppress(OSError, ValueError):
            self._show(redact(f"the log {self.baseFilename} ends here: {sys.exc_info()[1]}"))
            self.close()  # tries to write again


def start_logging(
    cache: Path,
    log_file: Path | None = None,
    verbosity: int = 0,
    show: Callable[[str], None] = print,
) -> None:
    """Open the log of this command.

    Args:
        cache: the cache folder; ``logs/`` in it takes the log unless ``log_file`` is given.
        log_file: the file that the user named with ``--log-file``; it is appended to.
        verbosity: 0 writes to the log file only; 1 (``-v``) shows INFO of builder and warnings of
            libraries; 2 (``-vv``) shows everything.
        show: receives the lines to show.

    A cache that is not writable is not an error: some commands do not need it.

    Raises:
        UsageError: ``log_file`` cannot be written.
    """
    global _path
    stop_logging()
    log.setLevel(logging.DEBUG)
    log.propagate = False
    logging.raiseExceptions = False  # nor do those of other handlers
    if verbosity:
        _add(_Shown(verbosity, show))
    try:
        path = log_file or _new_log(CacheFolders(cache).logs)
        handler = _File(path, show)
    except BuilderError:  # a cache that is refused: what uses it says why
        return
    except OSError as e:
        if log_file is not None:
            hint = "name a file that you may write"
            raise UsageError(f"--log-file {log_file}: {e.strerror}", hint) from None
        return
    _add(handler)
    _path = path
    system, python = os.uname(), sys.version.partition(" ")[0]  # the module platform runs uname
    log.debug("builder %s, Python %s, %s", __version__, python, " ".join(system[::2]))
    log.debug("command: %s", " ".join(sys.argv))


def stop_logging() -> None:
    """Close the handlers of an earlier :func:`start_logging` in the same process."""
    global _path
    _path = None
    log.propagate = True
    log.setLevel(logging.NOTSET)
    for name in ("builder", *_LIBRARIES):
        logger = logging.getLogger(name)
        for handler in logger.handlers[:]:
            if isinstance(handler.formatter, _Redacted):
                logger.removeHandler(handler)
                handler.close()


def _add(handler: logging.Handler) -> None:
    for name in ("builder", *_LIBRARIES):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        if name != "builder":
            logger.setLevel(logging.INFO)


def _new_log(folder: Path) -> Path:
    """Return the name of a new log, after removing the oldest ones."""
    with contextlib.suppress(OSError):
        for old in sorted(folder.glob("*.log"))[: -(_LOGS - 1)]:
            old.unlink(missing_ok=True)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    return folder / f"{now}-{os.getpid()}.log"
