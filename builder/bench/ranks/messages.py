"""Lines of JSON, which ranks, relays and the launcher exchange."""

from __future__ import annotations

import json
import os

from ..core import Item


def encode(message: Item) -> bytes:
    """A message as a line."""
    return (json.dumps(message) + "\n").encode()


class Lines:
    """Puts messages together from a stream that arrives in parts."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, data: bytes) -> list[Item]:
        """The messages that are complete with this part. Raises ValueError for a line that is not JSON."""
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        values = [json.loads(line) for line in lines if line]
        return [value for value in values if isinstance(value, dict)]


def write_all(fd: int, data: bytes) -> None:
    """Writes to a pipe, which may take it in parts."""
    while data:
        data = data[os.write(fd, data) :]


def complain(text: str) -> None:
    """A line on standard error, by one write: several processes share it."""
    os.write(2, f"smoke: {text}\n".encode("utf-8", "replace"))
