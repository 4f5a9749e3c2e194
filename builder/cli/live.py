"""What runs now: a display in a terminal, a line every few seconds in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from builder.core.progress import Reporter
from builder.core.text import human_bytes, human_seconds, visible

if TYPE_CHECKING:
    from .display import Display

#: Seconds without a line in a log, after which one says what runs. A busy machine may be late by a second.
QUIET_S = 8.0
#: Seconds between two states of the display in a terminal, and of how many of them a rate is.
_REFRESH_S = 0.125
_STATES = 120


def is_drawn(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that obeys escapes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


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
    _states: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_STATES))
    """When its status was asked for, and what was done then."""

    def status(self, now: float) -> str:
        """Return the state as text.

        With a total ``412.0 MB of 1.2 GB, 34 %, 58.0 MB/s, 14 s left``; otherwise ``12 s,
        installing packages``, after the amount if anything was counted.
        """
        rate, parts = self._rate(now), []
        if self.total:
            share = min(100, 100 * self.done // self.total)
            done = human_bytes(self.done) if self.unit == "B" else str(self.done)
            parts.append(f"{done} of {self._amount(self.total)}, {share} %")
        elif self.done:
            parts.append(self._amount(self.done))
        if rate and self.unit == "B":
            parts.append(f"{human_bytes(rate)}/s")
        if rate and self.total and self.done < self.total:
            parts.append(f"{human_seconds((self.total - self.done) / rate)} left")
        else:
            parts.append(human_seconds(now - self.started))
        return ", ".join([*parts, self.doing] if self.doing else parts)

    def _rate(self, now: float) -> float:
        """Return units per second, since the state that was shown the longest ago."""
        self._states.append((now, self.done) if self._states else (self.started, 0))
        then, before = self._states[0]
        return (self.done - before) / (now - then) if now > then else 0.0

    def _amount(self, count: int) -> str:
        return human_bytes(count) if self.unit == "B" else f"{count} {self.unit}".rstrip()


class Activity(Reporter):
    """Shows what runs: the task that began last, because it is a part of the others.

    In a terminal it has the last lines of stderr, which change; otherwise ``say`` receives a line
    when nothing was printed for :data:`QUIET_S` seconds.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say_line = say
        self._lock = threading.RLock()
        self._tasks: dict[str, LiveTask] = {}
        self._stop = threading.Event()
        self._printed = 0.0
        self._display: Display | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Remove the display from the terminal while something else is printed."""
        with self._lock:
            display, self._display = self._display, None
            if display is not None:
                with suppress(OSError, ValueError):  # nobody reads any more
                    display.stop()
            yield
            self._printed = time.monotonic()

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        """Show a task. One that is shown already gets another total."""
        with self._lock:
            now = time.monotonic()
            if not self._tasks:
                self._printed, self._stop = now, threading.Event()
                run, stop = self._report, self._stop
                threading.Thread(target=run, args=(stop,), name="activity", daemon=True).start()
            self._tasks.setdefault(task, LiveTask(task, total, unit, now)).total = total

    def advance(self, task: str, amount: int) -> None:
        """Count what a task has done."""
        with self._lock, suppress(KeyError):
            self._tasks[task].done += amount

    def doing(self, task: str, what: str) -> None:
        """Show what a task does now."""
        with self._lock, suppress(KeyError):
            self._tasks[task].doing = what

    def finish(self, task: str, summary: str = "") -> None:
        """Show a task no longer."""
        with self._lock:
            if self._tasks.pop(task, None) is not None and not self._tasks:
                self.close()

    def close(self) -> None:
        """End the display of tasks, also of those that an error left open."""
        with self.paused():
            self._stop.set()
            self._tasks.clear()

    def _report(self, stop: threading.Event) -> None:
        """Show what runs until ``stop`` is set."""
        is_terminal = is_drawn(sys.stderr)
        pause = _REFRESH_S if is_terminal else QUIET_S
        with suppress(OSError, ValueError):  # nobody reads any more, or the output is closed
            while not stop.wait(self._printed + pause - time.monotonic()):
                with self._lock:
                    if stop.is_set() or time.monotonic() - self._printed < pause:
                        continue
                    line = self._show(is_terminal)
                    self._printed = time.monotonic()
                if not is_terminal:
                    self._say_line(line)  # it takes locks of the log

    def _show(self, is_terminal: bool) -> str:
        """Return the state of the task that began last, and how many others run; draw it."""
        *others, task = self._tasks.values()
        more = f" (and {len(others)} more)" if len(others) > 1 else ""
        status = visible(f": {task.status(time.monotonic())}{more}".replace("\n", " "))
        name = visible(task.name.replace("\n", " "))
        if is_terminal:
            from .display import Display

            if self._display is None:
                self._display = Display()
                self._display.start()
            self._display.draw(name, status, task.done, task.total)
        return name + status
