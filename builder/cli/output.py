"""What the command line prints: results on stdout, progress and messages on stderr, both in the log
too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import click

from builder.core.errors import UsageError
from builder.core.text import Table, visible
from builder.formats.net.urlvariables import as_written

from .live import Activity
from .logs import OUTPUT

#: The version of all documents of ``--json``. It rises when a key goes, or gets another meaning.
DOCUMENTS_VERSION = 1

log = logging.getLogger(OUTPUT)


class Output(Activity):
    """Writes results to stdout and progress to stderr; the :class:`builder.core.progress.Reporter`
    of all stages.

    Control characters of texts are shown as escapes (``\\x1b``): messages and tables quote
    registries, locks and packages, which could set the terminal's title, clear the screen, or hide
    what follows.

    Args:
        as_json: stdout takes one JSON document and nothing else.
        quiet: show only the result, warnings and errors, and no progress.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.document = "error"
        """The name of the JSON schema of the result: the command's, ``cache-info``."""
        self.printed: list[tuple[str, Any]] = []
        """The methods that printed something, and what, for :mod:`builder.cli.unchanged`."""
        super().__init__(self._note)

    def result(self, value: Any, text: str | None = None) -> None:
        """Print the command's result: ``value`` with ``--json``, else ``text`` or nothing."""
        if self.as_json:
            self.printed.append(("result", value))
            shown = [*map(self._named, value)] if isinstance(value, list) else self._named(value)
            with self.paused():
                sys.stdout.write(json.dumps(shown, indent=2, sort_keys=True, default=str) + "\n")
        elif text is not None:
            self.text(text)

    def _named(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object with the name and version of its schema, see ``builder help schema``."""
        name = "error" if "error" in value else self.document
        return {"schema": f"{name}/{DOCUMENTS_VERSION}", **value}

    def text(self, text: str) -> None:
        """Print a part of the result, unless ``--json`` prints all of it at the end."""
        self.printed.append(("text", text))
        if not self.as_json:
            self._print(text, sys.stdout)

    def table(self, table: Table) -> None:
        """Print a table that fits the terminal, unless the result is JSON or there is nothing in it."""
        from .terminal import FILE_WIDTH, fitted, width_of

        if lines := fitted(table, width_of(sys.stdout) or FILE_WIDTH):
            self.text("\n".join(lines))

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        if not self.quiet:
            super().start(task, total, unit)

    def finish(self, task: str, summary: str = "") -> None:
        super().finish(task)
        if summary:
            self.note(summary)

    def log_line(self, line: str) -> None:
        """Print a line of the log."""
        self._say("", line)

    def note(self, message: str) -> None:
        self.printed.append(("note", as_written(message)))
        self._note(message)

    def _note(self, message: str) -> None:
        log.info("%s", message)
        if not self.quiet:
            self._say("", message)

    def warn(self, message: str) -> None:
        self.printed.append(("warn", as_written(message)))
        log.warning("%s", message)
        self._say("warning: ", message)

    def error(self, message: str, hint: str = "") -> None:
        """Print an error of the command, or of one of its targets."""
        log.error("%s%s", message, f" (hint: {hint})" if hint else "")
        self.close()
        self._say("error: ", message)
        if hint:
            self._say("  hint: ", hint)

    def failure(self, message: str, hint: str, code: int, log_file: Path | None = None) -> int:
        """Print the error that ends the command, with ``--json`` on stdout too; return the code."""
        self.error(message, hint)
        if log_file is not None:
            self._say("  log:  ", str(log_file))
        if self.as_json:
            with contextlib.suppress(OSError):  # the error may be that stdout cannot be written to
                self.result({"error": as_written(message), "hint": hint, "code": code})
                sys.stdout.flush()
        return code

    def _say(self, label: str, message: str) -> None:
        """Print a message on stderr, after a label. A full disk ends no command there."""
        with contextlib.suppress(OSError):
            self._print(label + as_written(message), sys.stderr)

    def _print(self, text: str, stream: TextIO) -> None:
        text = visible(text)
        if stream.isatty():
            from .terminal import laid_out

            text = laid_out(text, stream)
        with self.paused():
            click.echo(text, stream)


def agreed(question: str, default: bool = False) -> bool:
    """Ask the user. Raises UsageError: nobody answers."""
    try:
        return click.confirm(question, default=default, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # ends the line of the question
        raise UsageError("there is no terminal to ask at", "agree to everything: -y") from None
