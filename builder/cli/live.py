"""What runs now: a line that changes in a terminal, a line every few seconds in a log."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from builder.core.progress import Reporter
from builder.core.text import human_bytes, human_seconds, visible

#: Seconds without a line in a log, after which one says what runs. A busy machine may be late by a second.
QUIET_S = 8.0
#: Seconds over which a rate is measured, and between two of its samples.
_RATE_S = 15.0
_SAMPLE_S = 0.5
#: Seconds between two states of the line in a terminal.
_REFRESH_S = 0.125
#: Moves the cursor to the start of its line, and deletes the line.
_CLEAR = "\r\x1b[K"


@dataclass
class LiveTask:
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
        """Count more units."""
        if not self._samples:
            self._samples.append((self.started, 0))
        self.done += amount
        if now - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now, self.done))
            while now - self._samples[0][0] > _RATE_S and len(self._samples) > 2:
                self._samples.popleft()

    def status(self, now: float) -> str:
        """Return the state as text.

        With a total ``412.0 MB of 1.2 GB, 34 %, 58.0 MB/s, 14 s left``; otherwise ``12 s,
        installing packages``, after the amount if anything was counted.
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
        """Return units per second; 0 if that cannot be told yet."""
        if not self._samples:
            return 0.0
        then, amount = self._samples[0]
        return (self.done - amount) / (now - then) if now > then else 0.0


class Activity(Reporter):
    """Shows what runs: the task that began last, because it is a part of the others.

    In a terminal it has the last line of stderr, which changes; otherwise ``say`` receives a line
    when nothing was printed for :data:`QUIET_S` seconds.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._show_line = say
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.Lock()  # of the tasks
        self._display = threading.RLock()  # of what shows them; taken before the other one
        self._tasks: dict[str, LiveTask] = {}
        self._stop = threading.Event()
        self._printed = 0.0
        self._shown = False

    def clear(self) -> None:
        """Remove the line from the terminal, because something else will be printed."""
        with self._display:
            self._printed = time.monotonic()
            if self._shown:
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
                self._shown = False

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        """Show a task. One that is shown already gets another total."""
        with self._display:
            with self._lock:
                is_first, now = not self._tasks, time.monotonic()
                self._tasks.setdefault(task, LiveTask(task, total, unit, now)).total = total
            if is_first:
                self._printed = now
                self._stop = threading.Event()
                run, stop = self._report, self._stop
                threading.Thread(target=run, args=(stop,), name="activity", daemon=True).start()

    def advance(self, task: str, amount: int) -> None:
        """Count what a task has done."""
        with self._lock:
            if live := self._tasks.get(task):
                live.advance(amount, time.monotonic())

    def doing(self, task: str, what: str) -> None:
        """Show what a task does now."""
        with self._lock:
            if live := self._tasks.get(task):
                live.doing = what

    def finish(self, task: str, summary: str = "") -> None:
        """Show a task no longer."""
        with self._display:
            with self._lock:
                is_last = self._tasks.pop(task, None) is not None and not self._tasks
            if is_last:
                self._end()

    def close(self) -> None:
        """End the display of tasks, also of those that an error left open."""
        with self._lock:
            self._tasks.clear()
        self._end()

    def _end(self) -> None:
        with self._display:
            self._stop.set()
            self.clear()

    def _report(self, stop: threading.Event) -> None:
        """Show what runs until ``stop`` is set."""
        pause = _REFRESH_S if self._terminal else QUIET_S
        while not stop.wait(pause if self._terminal else self._printed + pause - time.monotonic()):
            with self._display:
                if stop.is_set() or time.monotonic() - self._printed < pause:
                    continue
                try:
                    self._show()
                except (OSError, ValueError):  # nobody reads any more, or the output is closed
                    return

    def _show(self) -> None:
        line = self._line()
        if not self._terminal:
            self._show_line(line)
            return
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(_CLEAR + (line if len(line) <= width else f"{line[: width - 3]}..."))
        sys.stderr.flush()
        self._shown = True

    def _line(self) -> str:
        """Return the state of the task that began last, and how many others run."""
        with self._lock:
            *others, task = self._tasks.values()
            more = f" (and {len(others)} more)" if len(others) > 1 else ""
            return visible(f"{task.name}: {task.status(time.monotonic())}{more}".replace("\n", " "))
