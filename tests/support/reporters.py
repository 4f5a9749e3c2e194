"""Reporters for tests: each keeps messages of one kind."""

from __future__ import annotations

from builder.core.progress import Reporter


class Warnings(Reporter):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


class Notes(Reporter):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)
