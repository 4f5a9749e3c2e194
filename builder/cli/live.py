"""What runs now: a live display in a terminal, a line every few seconds in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from builder.text import human_bytes, human_seconds

#: Seconds without a line in a log, after which one says what runs. A busy machine may be late by a second.
QUIET_S = 8.0
#: Seconds over which a rate is measured, and between two of its samples.
_RATE_S = 15.0
_SAMPLE_S = 0.5
#: Columns of a bar: it takes what the text leaves, and is left out below the least.
_BAR = range(8, 25)
#: Columns that a name keeps beside a long state.
_LEAST_NAME = 24


@dataclass
class Task:
    """A task that runs."""

    name: str
    total: int | None
    unit: str
    started: float
    """Of :func:`time.monotonic`, in seconds."""
    done: int = 0
    doing: str = ""
    """What the task does now."""
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def advance(self, amount: int, now: float) -> None:
        """Counts more units."""
        if not self._samples:
            self._samples.append((self.started, 0))
        self.done += amount
        if now - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now, self.done))
            while now - self._samples[0][0] > _RATE_S and len(self._samples) > 2:
                self._samples.popleft()

    def status(self, now: float) -> str:
        """The state as text.

        With a total ``412.0 MB of 1.2 GB, 34 %, 58.0 MB/s, 14 s left``; otherwise ``12 s, installing
        packages``, after the amount if anything was counted.
        """
        parts = []
        if self.total:
            parts.append(f"{self._amount(self.done, self.total)} of {self._amount(self.total)}")
            parts.append(f"{min(100, 100 * self.done // self.total)} %")
        elif self.done:
            parts.append(self._amount(self.done))
        rate = self._rate(now)
        if rate and self.unit == "B":
            parts.append(f"{human_bytes(rate)}/s")
        if rate and self.total and self.done < self.total:
            parts.append(f"{human_seconds((self.total - self.done) / rate)} left")
        else:
            parts.append(human_seconds(now - self.started))
        return ", ".join([*parts, self.doing] if self.doing else parts)

    def _amount(self, count: int, total: int | None = None) -> str:
        if self.unit == "B":
            return human_bytes(count)
        return str(count) if total or not self.unit else f"{count} {self.unit}"

    def _rate(self, now: float) -> float:
        """Units per second; 0 if that cannot be told yet."""
        if not self._samples:
            return 0.0
        then, amount = self._samples[0]
        return (self.done - amount) / (now - then) if now > then else 0.0


class Activity:
    """Shows the tasks that run.

    Args:
        console: where they are shown. In a terminal they have a line each, which changes; otherwise
            ``say`` receives a line for each when nothing was printed for :data:`QUIET_S` seconds.
        say: prints a line.
    """

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        self._console = console
        self._say = say
        self._lock = threading.Lock()  # of the tasks
        self._display = threading.Lock()  # of what shows them; taken before the other one
        self._tasks: dict[str, Task] = {}
        self._live: Live | None = None
        self._stop = threading.Event()
        self._spinner = Spinner("dots")
        self._printed = 0.0

    def printed(self) -> None:
        """Something was printed: a log is not silent."""
        self._printed = time.monotonic()

    def start(self, name: str, total: int | None, unit: str) -> None:
        """Shows a task. One that is shown already gets another total."""
        with self._display:
            with self._lock:
                is_first = not self._tasks
                task = self._tasks.setdefault(name, Task(name, total, unit, time.monotonic()))
                task.total = total
            if is_first:
                self._begin()

    def advance(self, name: str, amount: int) -> None:
        """Counts what a task has done."""
        with self._lock:
            if task := self._tasks.get(name):
                task.advance(amount, time.monotonic())

    def doing(self, name: str, what: str) -> None:
        """Shows what a task does now."""
        with self._lock:
            if task := self._tasks.get(name):
                task.doing = what

    def finish(self, name: str) -> None:
        """Shows a task no longer."""
        with self._display:
            with self._lock:
                is_last = self._tasks.pop(name, None) is not None and not self._tasks
            if is_last:
                self._end()

    def close(self) -> None:
        """Shows no task any longer."""
        with self._display:
            with self._lock:
                self._tasks.clear()
            self._end()

    def _begin(self) -> None:
        self.printed()
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()
            return
        self._stop = threading.Event()
        threading.Thread(target=self._report, args=(self._stop,), name="activity", daemon=True).start()

    def _end(self) -> None:
        self._stop.set()
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _report(self, stop: threading.Event) -> None:
        """Prints lines until ``stop`` is set."""
        while not stop.wait(max(0.01, self._printed + QUIET_S - time.monotonic())):
            with self._display:
                if stop.is_set() or time.monotonic() - self._printed < QUIET_S:
                    continue
                try:
                    self._say(self._line())
                except (OSError, ValueError):  # nobody reads any more, or the output is closed
                    return
                self.printed()

    def _line(self) -> str:
        """The state of the task that began last: it is a part of the others."""
        with self._lock:
            task = list(self._tasks.values())[-1]
            return f"{task.name}: {task.status(time.monotonic())}"

    def _render(self) -> Group:
        with self._lock:
            now = time.monotonic()
            rows = [(task.name, task.status(now), task.total, task.done) for task in self._tasks.values()]
        return Group(*(self._row(*row) for row in rows))

    def _row(self, name: str, status: str, total: int | None, done: int) -> Table:
        """A line that is never wider than the terminal: spinner, name, bar, state."""
        room = self._console.width - 3  # the spinner, and a column that stays free
        if len(name) + 1 + len(status) > room:
            name = _shortened(name, max(_LEAST_NAME, room - 1 - len(status)))
            status = _shortened(status, room - 1 - len(name))
        cells: list[Spinner | Text | ProgressBar] = [self._spinner, Text(name, no_wrap=True)]
        left = room - len(name) - len(status) - 2
        if total and left >= _BAR.start:
            cells.append(ProgressBar(total, min(done, total), width=min(left, _BAR.stop - 1)))
        cells.append(Text(status, style="dim", no_wrap=True))
        row = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        row.add_row(*cells)
        return row


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."
