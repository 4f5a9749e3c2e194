"""Everything that a person or a script sees: progress on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from rich.console import Console
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


class Output:
    """Writes results and progress; also the :class:`builder.progress.Reporter` of all stages.

    Bars appear on a terminal only. ``quiet`` leaves warnings; ``as_json`` puts one JSON document on stdout and
    everything else on stderr.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.err = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        self.out = Console(highlight=False, emoji=False, soft_wrap=True)
        if not self.out.is_terminal:
            self.out = Console(
                highlight=False, emoji=False, soft_wrap=True, width=200
            )  # a file or a pipe has no width to keep to
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    # results

    def result(self, value: Any, text: str | None = None) -> None:
        """The command's result: JSON when asked for, else ``text`` (rich markup) or nothing."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")
        elif text is not None:
            self.out.print(text)

    def text(self, text: str) -> None:
        """A part of the result for people (rich markup); the JSON that is asked for instead comes as a whole at the end."""
        if not self.as_json:
            self.out.print(text)

    def table(self, table: Any) -> None:
        """A rich table, when a person reads."""
        if not self.as_json:
            self.out.print(table)

    # Reporter

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
        if not self.quiet:
            self.err.print(escape(message))

    def warn(self, message: str) -> None:
        self.err.print(f"[yellow]warning:[/yellow] {escape(message)}")

    def error(self, message: str, hint: str = "") -> None:
        """An error that ends the command."""
        self.close()
        self.err.print(f"[red]error:[/red] {escape(message)}")
        if hint:
            self.err.print(f"  [dim]hint:[/dim] {escape(hint)}")

    def close(self) -> None:
        """Ends progress bars that an error left open."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
            self._progress, self._tasks = None, {}
