"""What the command line prints: results on stdout, progress and messages on stderr, both in the log too."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment

from builder.text import visible

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
        quiet: show warnings and errors only. Progress bars appear on a terminal only.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.err = _Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        self.out = _Console(highlight=False, emoji=False, soft_wrap=True)
        if not self.out.is_terminal:  # a file or a pipe has no width
            self.out = _Console(highlight=False, emoji=False, soft_wrap=True, width=200)
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

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

    def table(self, table: Any) -> None:
        """Prints a rich table, unless the result is JSON."""
        if not self.as_json:
            self.out.print(table)

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        if self.quiet or not self.err.is_terminal:
            return
        with self._lock:
            if self._progress is None:
                amount = DownloadColumn() if unit == "B" else TextColumn("{task.completed}/{task.total}")
                self._progress = Progress(
                    SpinnerColumn(),
                    TextColumn("{task.description}"),
                    BarColumn(),
                    amount,
                    TimeElapsedColumn(),
                    console=self.err,
                    transient=True,
                )
                self._progress.start()
            if task not in self._tasks:
                self._tasks[task] = self._progress.add_task(escape(task), total=total)

    def advance(self, task: str, amount: int) -> None:
        if self._progress is not None and task in self._tasks:
            self._progress.advance(self._tasks[task], amount)

    def finish(self, task: str, summary: str = "") -> None:
        with self._lock:
            if self._progress is not None and task in self._tasks:
                self._progress.remove_task(self._tasks.pop(task))
                if not self._tasks:
                    self._progress.stop()
                    self._progress = None
        if summary:
            self.note(summary)

    def note(self, message: str) -> None:
        log.info("%s", message)
        if not self.quiet:
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
        """Ends the progress bars that an error left open."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
            self._progress, self._tasks = None, {}
