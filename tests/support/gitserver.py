"""Git repositories for tests, and a real git server on loopback (``git http-backend``)."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

_ENV = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "me",
    "GIT_AUTHOR_EMAIL": "me@host.example",
    "GIT_COMMITTER_NAME": "me",
    "GIT_COMMITTER_EMAIL": "me@host.example",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


class Repo:
    """A repository with a working tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def git(self, *arguments: str, data: bytes | None = None) -> str:
        options = ["-c", "protocol.file.allow=always", "-c", "core.hooksPath=/dev/null"]
        done = subprocess.run(
            ["git", *options, *arguments], cwd=self.folder, env=_ENV, input=data, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def commit(self, **files: str) -> str:
        """Writes files (``__`` is a slash, ``_py`` and ``_toml`` are endings), and commits everything."""
        for name, text in files.items():
            stem, _, ending = name.replace("__", "/").rpartition("_")
            self.write(f"{stem}.{ending}", text)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")


class GitServer:
    """Serves the repositories below a folder; ``authorization`` is the header that it asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authorization = ""
        self.delay = 0.0
        """Seconds before each answer."""
        self.requests: list[str] = []
        self.logins: list[str] = []
        """What requests had in ``Authorization``."""
        self.redirect = ""
        """The server that has what is asked for here."""
        self.moved: dict[str, str] = {}
        """Old and new paths of repositories."""
        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self.httpd.daemon_threads = True
        threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.httpd.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: GitServer

    def log_message(self, *args: object) -> None: ...

    def finish(self) -> None:
        super().finish()
        if isinstance(self.connection, ssl.SSLSocket):  # GnuTLS takes a connection without an end for cut off
            with contextlib.suppress(OSError, ValueError):
                self.connection.unwrap()

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"] or 0)))

    def _serve(self, data: bytes) -> None:
        self.owner.requests.append(self.path)
        self.owner.logins += [self.headers["Authorization"]] if "Authorization" in self.headers else []
        time.sleep(self.owner.delay)
        if self.owner.authorization and self.headers["Authorization"] != self.owner.authorization:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        old = next((old for old in self.owner.moved if self.path.startswith(f"{old}/")), "")
        if self.owner.redirect or old:
            place = self.path.replace(old, self.owner.moved[old], 1) if old else self.path
            self.send_response(302)
            self.send_header("Location", self.owner.redirect + place)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        parts = urlsplit(self.path)
        env = {
            **_ENV,
            "GIT_PROJECT_ROOT": str(self.owner.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers["Content-Type"] or "",
            "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
            "GIT_PROTOCOL": self.headers["Git-Protocol"] or "",
        }
        answer = subprocess.run(["git", "http-backend"], env=env, input=data, capture_output=True).stdout
        head, _, body = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
