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
    other bytes, ``"other range"``, ``("redirect", URL)``, ``("cut", BYTES)`` or ``("slow", SECONDS per 32
    KiB)``. ``log`` holds (method, path, Range header, Authorization header) of each request.
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

    def _handler(server):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # headers and body are two writes: no 40 ms between them
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None: ...

            def do_HEAD(self) -> None:
                self.serve(False)

            def do_GET(self) -> None:
                self.serve(True)

            def serve(self, body: bool) -> None:
                path = self.path.partition("?")[0]
                wanted, auth = self.headers.get("Range", ""), self.headers.get("Authorization", "")
                server.log.append((self.command, path, wanted, auth))
                data = server.files.get(path)
                fault = server.faults[path].pop(0) if body and server.faults[path] else None
                if isinstance(fault, int):
                    self.answer(fault, b"no")
                    return
                if isinstance(fault, tuple) and fault[0] == "redirect":
                    self.answer(302, b"", Location=fault[1])
                    return
                if isinstance(fault, bytes):
                    data = fault
                if data is None:
                    self.answer(404, b"gone")
                    return
                start = int(m[1]) if server.ranges and (m := re.fullmatch(r"bytes=(\d+)-", wanted)) else 0
                if fault == "other range":
                    start = 7
                if start >= len(data) and start:
                    self.answer(416, b"")
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                rest = data[start:] if body else b""
                if isinstance(fault, tuple) and fault[0] == "cut":
                    self.wfile.write(rest[: fault[1]])
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if isinstance(fault, tuple) and fault[0] == "slow":
                    for at in range(0, len(rest), 1 << 15):
                        self.wfile.write(rest[at : at + (1 << 15)])
                        self.wfile.flush()
                        time.sleep(fault[1])
                    return
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

        return Handler

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()
