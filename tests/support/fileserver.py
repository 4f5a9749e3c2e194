"""A real HTTP server on loopback that serves bytes and fails as a test says."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """A server for the tests of downloads.

    ``files`` are contents by path. ``faults`` are lists by path; each GET uses one fault: a status code,
    other bytes, ``"other range"``, ``("redirect", URL)``, ``("cut", BYTES)``, ``("slow", SECONDS per 32
    KiB)``, or a function that is called before the answer. ``log`` holds (method, path, Range header,
    Authorization header) of each request.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[object]] = defaultdict(list)
        self.log: list[tuple[str, str, str, str]] = []
        self.ranges = True
        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.httpd.daemon_threads = True
        self.scheme = "http"
        threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.httpd.server_port}"

    def put(self, path: str, data: bytes) -> str:
        self.files[path] = data
        return self.url + path

    def gets(self, path: str) -> list[str]:
        return [r for m, p, r, _ in self.log if m == "GET" and p == path]

    def _handler(self) -> type[_Handler]:
        return type("Handler", (_Handler,), {"owner": self})

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: Server
    disable_nagle_algorithm = True  # headers and body are two writes: no 40 ms between them
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.serve(body=False)

    def do_GET(self) -> None:
        self.serve(body=True)

    def serve(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        wanted, auth = self.headers.get("Range", ""), self.headers.get("Authorization", "")
        self.owner.log.append((self.command, path, wanted, auth))
        faults = self.owner.faults[path]
        fault = faults.pop(0) if body and faults else None
        data = fault if isinstance(fault, bytes) else self.owner.files.get(path)
        if callable(fault):
            fault()
        if isinstance(fault, int):
            self.answer(fault, b"no")
        elif isinstance(fault, tuple) and fault[0] == "redirect":
            self.answer(302, b"", Location=fault[1])
        elif data is None:
            self.answer(404, b"gone")
        else:
            self.send(data, 7 if fault == "other range" else self.start_of(wanted), fault, body=body)

    def start_of(self, wanted: str) -> int:
        """Where the requested range starts, in bytes."""
        found = re.fullmatch(r"bytes=(\d+)-", wanted) if self.owner.ranges else None
        return int(found[1]) if found else 0

    def send(self, data: bytes, start: int, fault: object, *, body: bool) -> None:
        """Sends a file from ``start`` on."""
        if start >= len(data) and start:
            self.answer(416, b"")
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        if self.path.endswith("/"):  # a page of a package index
            self.send_header("Content-Type", "text/html")
        self.end_headers()
        rest = data[start:] if body else b""
        if isinstance(fault, tuple) and fault[0] == "cut":
            self.wfile.write(rest[: fault[1]])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif isinstance(fault, tuple) and fault[0] == "slow":
            for at in range(0, len(rest), 1 << 15):
                self.wfile.write(rest[at : at + (1 << 15)])
                self.wfile.flush()
                time.sleep(fault[1])
        else:
            self.wfile.write(rest)

    def answer(self, code: int, data: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client went away
            pass
