"""A proxy before a registry that does to each request and answer what a test says."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from tests.support.channel import running


@dataclass(frozen=True)
class Answer:
    """An answer; its length is not among the headers."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def having(self, **headers: str) -> Answer:
        """The same with further headers, ``_`` for ``-``."""
        return replace(self, headers=self.headers | {k.replace("_", "-"): v for k, v in headers.items()})


class BadProxy(ThreadingHTTPServer):
    """Passes requests on; ``fault`` gets each of them, and answers it in another way, or not at all."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.target = target
        self.fault: Fault = Exchange.pass_on
        self.count = itertools.count()
        self.seen: Counter[tuple[str, ...]] = Counter()
        self.ended = threading.Event()
        """Ends faults that take long."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def be(self, fault: Fault) -> None:
        """Changes the fault; requests are counted from 0 again."""
        self.fault, self.count, self.seen = fault, itertools.count(), Counter()

    def handle_error(self, *args: object) -> None:
        """Clients may hang up."""


class Exchange(BaseHTTPRequestHandler):
    """One request, with what a fault can do."""

    server: BadProxy
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None: ...

    def do_any(self) -> None:
        self.number = next(self.server.count)
        """Of the request, from 0 on."""
        path, _, query = self.path.partition("?")
        blob = parse_qs(query).get("digest")
        key = (self.command, *(blob or [path]))
        self.is_first = not self.server.seen[key]
        """Whether this was not asked before: of the end of an upload, whether in another session."""
        self.server.seen[key] += 1
        self.length = int(self.headers.get("Content-Length") or 0)
        self.server.fault(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_any

    @property
    def is_blob(self) -> bool:
        """Whether the body of the answer is a blob."""
        return self.command == "GET" and "/blobs/sha256:" in self.path

    def asked(self, change: Callable[[bytes], bytes] = bytes) -> Answer:
        """The answer of the registry to this request, with a body that was changed."""
        upstream = http.client.HTTPConnection(self.server.target, timeout=60)
        with contextlib.closing(upstream):
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            upstream.request(self.command, self.path, change(self.rfile.read(self.length)), headers)
            answer = upstream.getresponse()
            kept = {k: v for k, v in answer.getheaders() if k.lower() not in ("connection", "content-length")}
            self.stated = answer.getheader("Content-Length")
            return Answer(answer.status, kept, answer.read())

    def raw(self, answer: Answer) -> bytes:
        """The bytes of an answer."""
        stated = getattr(self, "stated", None) if self.command == "HEAD" else None
        headers = answer.headers | {"Content-Length": stated or str(len(answer.body))}
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses[answer.status]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        body = b"" if self.command == "HEAD" else answer.body
        return "\r\n".join([*lines, "", ""]).encode() + body

    def pass_on(self) -> None:
        """No fault."""
        self.wfile.write(self.raw(self.asked()))

    def refuse(self, answer: Answer) -> None:
        """Answers in place of the registry, which does not get the request."""
        self.rfile.read(self.length)
        self.wfile.write(self.raw(answer))

    def drip(self, data: bytes, seconds: float) -> None:
        """Sends two bytes after each pause."""
        for start in range(0, len(data), 2):
            if self.server.ended.wait(seconds):
                break
            self.wfile.write(data[start : start + 2])
        self.close_connection = True

    def hang_up(self, after: int = 0) -> None:
        """Resets the connection after some bytes of the request's body."""
        self.rfile.read(min(after, self.length))
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


Fault = Callable[[Exchange], None]


@contextlib.contextmanager
def bad_proxy(target: str) -> Iterator[BadProxy]:
    """Runs a proxy before the server ``host:port``."""
    server = BadProxy(target)
    with running(server):
        try:
            yield server
        finally:
            server.ended.set()
