"""Proxies as companies and ``ssh -D`` have them: they answer for every name, from one server of the test."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from typing import Any

from tests.support.channel import running


class Proxy(socketserver.ThreadingTCPServer):
    """Takes requests for http, CONNECT, and SOCKS 5; ``asked`` has the ``host:port`` of each."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target: tuple[str, int], refusal: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.target = target
        """The server that is asked, whatever a client names."""
        self.refusal = refusal
        """The status line of each answer, such as ``403 Forbidden``; empty: nothing is refused."""
        self.asked: list[str] = []
        self.logins: list[str] = []
        """What clients sent in ``Proxy-Authorization``."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *args: Any) -> None:
        """Clients may hang up."""


@contextlib.contextmanager
def proxy_to(target: str, refusal: str = "") -> Iterator[Proxy]:
    """Runs a proxy before the server ``host:port``."""
    host, _, port = target.partition(":")
    server = Proxy((host, int(port)), refusal)
    with running(server):
        yield server


class _Connection(socketserver.BaseRequestHandler):
    server: Proxy
    request: socket.socket

    def handle(self) -> None:
        if self.request.recv(1, socket.MSG_PEEK) == b"\x05":
            self._socks()
            return
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.request.recv(1 << 16)
        method, address, _ = head.decode("latin-1").split(" ", 2)
        self.server.logins += re.findall(r"(?i)proxy-authorization: *(.+?)\r", head.decode("latin-1"))
        self.server.asked.append(re.sub(r"^http://|/.*$", "", address))
        if self.server.refusal:
            self.request.sendall(f"HTTP/1.1 {self.server.refusal}\r\nContent-Length: 0\r\n\r\n".encode())
        elif method == "CONNECT":
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self._pass_on(b"")
        else:
            self._pass_on(re.sub(rb"^(\S+) http://[^/]+", rb"\1 ", head, count=1))

    def _socks(self) -> None:
        """Answers as RFC 1928 says, without authentication; names are resolved here."""
        _, count = self.request.recv(2)
        self.request.recv(count)
        self.request.sendall(b"\x05\x00")
        *_, kind = self.request.recv(4)
        length = self.request.recv(1)[0] if kind == 3 else {1: 4, 4: 16}[kind]
        name = self.request.recv(length)
        host = name.decode() if kind == 3 else socket.inet_ntop({4: 2, 16: 10}[length], name)
        (port,) = struct.unpack(">H", self.request.recv(2))
        self.server.asked.append(f"{host}:{port}")
        self.request.sendall(bytes([5, 2 if self.server.refusal else 0, 0, 1, 0, 0, 0, 0, 0, 0]))
        if not self.server.refusal:
            self._pass_on(b"")

    def _pass_on(self, first: bytes) -> None:
        with socket.create_connection(self.server.target) as upstream:
            upstream.sendall(first)
            back = threading.Thread(target=_copy, args=(upstream, self.request), daemon=True)
            back.start()
            _copy(self.request, upstream)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
