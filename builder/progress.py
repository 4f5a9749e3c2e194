"""How the stages tell a person (or a log) what they are doing. Only the command line prints."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives progress. All methods may be called from any thread."""

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None:
        """A task begins; ``total`` in ``unit`` ("B" for bytes, else a count)."""

    def advance(self, task: str, amount: int) -> None:
        """``amount`` more units are done."""

    def finish(self, task: str, summary: str = "") -> None:
        """The task is over."""

    def note(self, message: str) -> None:
        """Something worth a line."""

    def warn(self, message: str) -> None:
        """Something the user should look at."""


class NullReporter:
    """Tells nobody."""

    def start(self, task: str, total: int | None = None, unit: str = "B") -> None: ...
    def advance(self, task: str, amount: int) -> None: ...
    def finish(self, task: str, summary: str = "") -> None: ...
    def note(self, message: str) -> None: ...
    def warn(self, message: str) -> None: ...


QUIET = NullReporter()
