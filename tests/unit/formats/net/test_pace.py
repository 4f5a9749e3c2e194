"""The least rate of a transfer."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpcore2
import httpx2
import pytest

from builder.formats.net import pace
from builder.formats.net.http import make_client
from builder.formats.net.pace import MIN_RATE, WINDOW_S, PacedStream, TooSlow


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds; nobody really waits."""
    now = [0.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    return now


class _Slow(httpcore2.NetworkStream):
    """A stream whose next read or write takes ``seconds``, and returns ``amount`` bytes."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.seconds, self.amount = clock, 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.clock[0] += self.seconds
        return bytes(self.amount)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.clock[0] += self.seconds


def test_windows(clock: list[float]) -> None:
    """A window with too few bytes ends the transfer; each window counts for itself, each direction too."""
    slow = _Slow(clock)
    stream = PacedStream(slow)

    def step(direction: str, amount: int, seconds: float) -> None:
        slow.amount, slow.seconds = amount, seconds
        stream.read(1 << 30) if direction == "received" else stream.write(bytes(amount))

    for direction in ("sent", "received"):
        step(direction, 1, 10 * WINDOW_S)  # the first byte may take long
        step(direction, 0, WINDOW_S - 1)
        step(direction, 10 * MIN_RATE * int(WINDOW_S), 1)
        step(direction, MIN_RATE * int(WINDOW_S) - 1, WINDOW_S - 1)
        with pytest.raises(TooSlow, match=f"bytes {direction} in 60 s"):
            step(direction, 0, 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000,
    ],
    ids=["header", "interim answers", "body"],
)
def test_trickling_answer(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends an answer byte by byte is a lost connection, in whatever part of the answer."""
    monkeypatch.setattr(pace, "WINDOW_S", 0.05)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                for byte in answer:
                    if ended.wait(0.01):
                        return
                    try:
                        connection.sendall(bytes([byte]))
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with make_client(1) as client, pytest.raises(TooSlow, match="received"):
            client.get(f"http://127.0.0.1:{server.getsockname()[1]}/")
        ended.set()
        thread.join()


def test_httpx2_takes_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of each client are measured: the place is not part of httpx2's interface."""
    opened: list[Any] = []

    def connect(self: Any, host: str, port: int, **options: Any) -> None:
        opened.append((host, port))
        raise httpcore2.ConnectError("not in this test")

    monkeypatch.setattr(pace.PacedBackend, "connect_tcp", connect)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("HTTP_PROXY", "socks5://socks.example")
    with make_client(1) as client:
        for url in ("http://127.0.0.1:1/", "https://direct.example/", "http://other.example/"):
            with pytest.raises(httpx2.ConnectError):
                client.get(url)
    assert opened == [("127.0.0.1", 1), ("proxy.example", 3128), ("socks.example", 1080)]
