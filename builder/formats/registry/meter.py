"""The progress of one transfer."""

from __future__ import annotations

from collections.abc import Callable

#: Receives the number of bytes transferred since the last call; negative when some must be
#: transferred again.
Progress = Callable[[int], None]


class Meter:
    """Turns positions in a blob into differences, so that their sum is always the position.

    Args:
        progress: receives the differences; None: they are dropped.
        size: of the blob, in bytes; positions beyond it count as its end.
    """

    def __init__(self, progress: Progress | None, size: int) -> None:
        self._progress = progress
        self._size = size
        self._reported = 0

    def at(self, position: int) -> None:
        """Report a position of the transfer, in bytes from the start of the blob."""
        position = min(position, self._size)
        if self._progress is not None and position != self._reported:
            self._progress(position - self._reported)
        self._reported = position
