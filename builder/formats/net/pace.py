"""Enforces a minimum transfer rate, so that a stalled server cannot block a command.

A time limit for each part of a response (httpx2's ``read``) is not enough: every byte resets it.
Here the bytes and the seconds that were spent waiting for them are counted in windows. A window
with too few bytes breaks the transfer off as a lost connection does, and the caller's retries
apply.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import httpx2

#: Bytes per second. A modem of 1990 is faster.
MIN_RATE = 1000
#: Seconds over which the rate is measured. An idle connection is left to the time limits of httpx2: a
#: registry may need minutes before it answers.
WINDOW_S = 60.0


class TooSlow(httpx2.ReadTimeout):
    """The transfer is slower than :data:`MIN_RATE`."""


class Pace:
    """Measures one transfer."""

    def __init__(self) -> None:
        self._amount = 0
        self._seconds = 0.0

    def add(self, amount: int, seconds: float) -> None:
        """Count ``amount`` bytes that took ``seconds``.

        Raises:
            TooSlow: the window has ended and held too few bytes.
        """
        self._amount += amount
        self._seconds += seconds
        if self._seconds < WINDOW_S:
            return
        if self._amount < MIN_RATE * self._seconds:
            raise TooSlow(f"{self._amount} bytes in {self._seconds:.0f} s")
        self._amount, self._seconds = 0, 0.0

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts of a response; the time that the receiver spends on them does not count.

        Raises:
            TooSlow: they arrive too slowly.
        """
        pace, waiting = cls(), iter(parts)
        while True:
            started = time.monotonic()
            data = next(waiting, None)
            if data is None:
                return
            pace.add(len(data), time.monotonic() - started)
            yield data
