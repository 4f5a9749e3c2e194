"""How the stages report progress. They call a :class:`Reporter`; only the command line prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Reporter:
    """Receives progress, and ignores it. All methods may be called from any thread."""

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        """Report the start of a task.

        Args:
            task: its name, which identifies it in later calls.
            total: the amount of work in ``unit``; None if unknown. A second call sets it.
            unit: ``"B"`` for bytes; anything else is a count.
        """

    def advance(self, task: str, amount: int) -> None:
        """Report that ``amount`` more units of the task are done."""

    def doing(self, task: str, what: str) -> None:
        """Report the current activity of the task: ``installing packages``."""

    def finish(self, task: str, summary: str = "") -> None:
        """Report the end of the task.

        Args:
            task: its name.
            summary: a note for the user; empty for none.
        """

    def note(self, message: str) -> None:
        """Show a message to the user."""

    def warn(self, message: str) -> None:
        """Show a warning to the user."""


QUIET = Reporter()


@contextmanager
def working(
    reporter: Reporter, task: str, total: int | None = None, unit: str = "B"
) -> Iterator[None]:
    """Report a task while the body of a ``with`` statement runs, which may fail."""
    reporter.start(task, total, unit)
    try:
        yield
    finally:
        reporter.finish(task)
