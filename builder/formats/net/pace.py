"""Enforces a minimum transfer rate, so that a stalled server cannot block a command.

A time limit for each part of a response (httpx2's ``read``) is not enough: every byte resets it.
Here the bytes and the seconds that were spent waiting for them are counted in windows. A window
with too few bytes breaks the transfer off as a lost connection does, and the caller's retries
apply.
"""

from __future__ import annotations

import time
from typing import Any

import httpcore2
import httpx2

#: Bytes per second. A modem of 1990 is faster.
MIN_RATE = 1000
#: Seconds over which the rate is measured. An idle connection is left to the time limits of httpx2: a
#: registry may need minutes before it answers.
WINDOW_S = 60.0


class TooSlow(httpx2.ReadTimeout):
    """The transfer is slower than :data:`MIN_RATE`."""


class PacedStream(httpcore2.NetworkStream):
    """A connection whose transfers are measured, in both directions.

    Args:
        stream: the connection.
    """

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream
        self._direction, self._amount, self._seconds = "", 0, 0.0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes.

        Raises:
            TooSlow: they arrive too slowly.
        """
        started = time.monotonic()
        data = self._stream.read(max_bytes, timeout)
        self._count("received", len(data), started)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes.

        Raises:
            TooSlow: they are accepted too slowly.
        """
        started = time.monotonic()
        self._stream.write(buffer, timeout)
        self._count("sent", len(buffer), started)

    def _count(self, direction: str, amount: int, started: float) -> None:
        """Count bytes, but not the first of a request or answer, with the wait for it."""
        if direction != self._direction:
            self._direction, self._amount, self._seconds = direction, 0, 0.0
            return
        self._amount += amount
        self._seconds += time.monotonic() - started
        if self._seconds < WINDOW_S:
            return
        if self._amount < MIN_RATE * self._seconds:
            raise TooSlow(f"{self._amount} bytes {direction} in {self._seconds:.0f} s")
        self._amount, self._seconds = 0, 0.0

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def start_tls(self, *args: Any, **options: Any) -> PacedStream:
        """Return the connection with TLS."""
        return PacedStream(self._stream.start_tls(*args, **options))

    def get_extra_info(self, info: str) -> Any:
        """Return what the connection is."""
        return self._stream.get_extra_info(info)


class PacedBackend(httpcore2.SyncBackend):
    """Opens connections that are measured."""

    def connect_tcp(self, *args: Any, **options: Any) -> PacedStream:
        """Return a connection."""
        return PacedStream(super().connect_tcp(*args, **options))
