"""Reporters for tests."""

from __future__ import annotations

from builder.core.progress import NullReporter


class Warnings(NullReporter):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)
