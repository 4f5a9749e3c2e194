"""What the command line prints: results on stdout, progress and messages on stderr, both in the log too."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment, Segments
from rich.table import Table

from builder.cli.live import Activity
from builder.cli.tables import LONGEST_LINE, fitted
from builder.text import visible

#: Columns of a table that goes to a file or a pipe; a longer text stays on one line there.
_WIDTH = 120

log = logging.getLogger("builder.output")


class _Console(Console):
    """A console that shows control characters of texts as escapes (``\\x1b``) and keeps its own.

    Messages and tables quote registries, locks and packages: these could set the terminal's title, clear the
    screen, or hide what follows.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class Output:
    """Writes results to stdout and progress to stderr; the :class:`builder.progress.Reporter` of all stages.

    Args:
        as_json: stdout takes one JSON document and nothing else.
        quiet: show only the result, warnings and errors, and no progress.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.err = _Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        self.out = _Console(highlight=False, emoji=False, soft_wrap=True)
        self._wraps = self.out.is_terminal
        if not self._wraps:  # a file or a pipe has no width
            self.out = _Console(highlight=False, emoji=False, soft_wrap=True, width=_WIDTH)
        self._activity = Activity(self.err, self.note)

    def result(self, value: Any, text: str | None = None) -> None:
        """Prints the command's result: ``value`` with ``--json``, else ``text`` (rich markup) or nothing."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")
        elif text is not None:
            self.out.print(text)

    def text(self, text: str) -> None:
        """Prints a part of the result (rich markup), unless ``--json`` prints all of it at the end."""
        if not self.as_json:
            self.out.print(text)

    def table(self, table: Table) -> None:
        """Prints a rich table that fits the terminal, unless the result is JSON."""
        if self.as_json:
            return
        options = self.out.options.update(width=LONGEST_LINE)
        lines = self.out.render_lines(fitted(table, self.out, wrap=self._wraps), options, pad=False)
        self.out.print(Segments([segment for line in lines for segment in _stripped(line)]), end="")

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        if not self.quiet:
            self._activity.start(task, total, unit)

    def advance(self, task: str, amount: int) -> None:
        self._activity.advance(task, amount)

    def doing(self, task: str, what: str) -> None:
        self._activity.doing(task, what)

    def finish(self, task: str, summary: str = "") -> None:
        self._activity.finish(task)
        if summary:
            self.note(summary)

    def note(self, message: str) -> None:
        log.info("%s", message)
        if not self.quiet:
            self._activity.printed()
            self.err.print(escape(message))

    def warn(self, message: str) -> None:
        log.warning("%s", message)
        self.err.print(f"[yellow]warning:[/yellow] {escape(message)}")

    def error(self, message: str, hint: str = "") -> None:
        """Reports an error that ends the command."""
        log.error("%s%s", message, f" (hint: {hint})" if hint else "")
        self.close()
        self.err.print(f"[red]error:[/red] {escape(message)}")
        if hint:
            self.err.print(f"  [dim]hint:[/dim] {escape(hint)}")

    def failure(self, message: str, hint: str, code: int) -> None:
        """With ``--json``, prints the error that ends the command as the one document on stdout."""
        if self.as_json:
            with contextlib.suppress(OSError):  # the error may be that stdout cannot be written to
                self.result({"error": message, "hint": hint, "code": code})
                sys.stdout.flush()

    def log_hint(self, path: Path) -> None:
        """Names the log of a command that failed."""
        self.err.print(f"  [dim]log:[/dim]  {escape(str(path))}")

    def close(self) -> None:
        """Ends the display of tasks that an error left open."""
        self._activity.close()


def _stripped(line: list[Segment]) -> Iterable[Segment]:
    """A line without the blanks at its end, and a line break."""
    while line and not line[-1].text.strip(" "):
        line.pop()
    if line:
        text, style, control = line[-1]
        line[-1] = Segment(text.rstrip(" "), style, control)
    return [*line, Segment.line()]
