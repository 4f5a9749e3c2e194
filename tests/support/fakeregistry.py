"""A registry in memory with faults on request, as real registries have them sometimes.

It implements the distribution-spec over plain http on this machine: blobs, uploads (POST, PATCH, PUT,
status), mounts, manifests, ranges, referrers (with ``lists_referrers``, two per page), and Docker's token
authentication.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Reply:
    """What a fault answers instead of the registry; ``drain`` reads the request's body before."""

    status: int
    headers: dict[str, Any] = field(default_factory=dict)
    """A list as a value: several headers."""
    body: bytes = b""
    drain: bool = True


@dataclass
class Cut:
    """Closes the connection after ``after`` bytes of the request's body (GET of a blob: the response's)."""

    after: int = 0


Fault = Callable[[Request], Reply | Cut | None]
#: Sees the status and the headers that the registry would answer; changes headers, and returns the status.
Oddity = Callable[[Request, int, dict[str, Any]], int]


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class FakeRegistry:
    """Use as a context manager. ``fault`` sees every request before it is served."""

    def __init__(self, *, token_user: tuple[str, str] | None = None, identity_token: str = "") -> None:
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.manifests: dict[str, dict[str, tuple[bytes, str]]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.requests: list[Request] = []
        self.tokens: list[Request] = []
        self.valid: dict[str, set[str]] = {}
        self.fault: Fault = lambda request: None
        self.oddity: Oddity = lambda request, status, headers: status
        self.token_user, self.identity_token = token_user, identity_token
        self.auth = token_user is not None or bool(identity_token)
        self.redirect_blobs_to = ""
        self.patch_limit: int | None = None
        self.put_limit: int | None = None
        self.lists_referrers = False
        self.token_answer: Reply | None = None
        self.keeps_cut_put = False
        """As Pulp 2.30: what arrived of a PUT that broke off is stored under the digest."""
        self.lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            fake = outer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> FakeRegistry:
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()

    def has(self, repo: str, data: bytes) -> bool:
        return self.blobs.get(repo, {}).get(sha256(data)) == data

    def put(self, repo: str, data: bytes) -> str:
        self.blobs.setdefault(repo, {})[sha256(data)] = data
        return sha256(data)

    def count(self, method: str, pattern: str = "") -> int:
        return sum(r.method == method and re.search(pattern, r.path) is not None for r in self.requests)

    def fail_once(self, method: str, pattern: str, what: Reply | Cut, times: int = 1) -> None:
        """The next ``times`` matching requests get this fault."""
        left = [times]

        def fault(request: Request) -> Reply | Cut | None:
            if request.method == method and re.search(pattern, request.path) and left[0]:
                left[0] -= 1
                return what
            return None

        self.fault = fault


class _Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # headers and body are two writes: no 40 ms between them
    protocol_version = "HTTP/1.1"
    fake: FakeRegistry
    request_read: Request

    def log_message(self, *args: object) -> None: ...

    def do_any(self) -> None:
        url = urlsplit(self.path)
        request = Request(
            self.command,
            url.path,
            parse_qs(url.query, keep_blank_values=True),
            {k.lower(): v for k, v in self.headers.items()},
        )
        fake = self.fake
        self.request_read = request
        if url.path == "/token":
            self.token(request)
            return
        with fake.lock:
            fake.requests.append(request)
            fault = fake.fault(request)
        length = int(self.headers.get("Content-Length") or 0)
        if isinstance(fault, Reply):
            if fault.drain:
                self.rfile.read(length)
            else:
                self.close_connection = True
            self.reply(fault.status, fault.body, fault.headers)
            return
        session = url.path.rpartition("/")[2]
        if isinstance(fault, Cut) and not (request.method == "GET" and "/blobs/sha256:" in request.path):
            data = self.rfile.read(min(fault.after, length))
            if session in fake.uploads:
                fake.uploads[session] += data
            if fake.keeps_cut_put and request.method == "PUT" and "digest" in request.query:
                repo = request.path.partition("/blobs/")[0].removeprefix("/v2/")
                fake.blobs.setdefault(repo, {})[request.query["digest"][0]] = data
            self.hang_up()
            return
        request.body = self.rfile.read(length)
        if fake.auth and not self.allowed(request):
            scope = f',scope="{self.scope(request)}"' if self.scope(request) else ""
            challenge = f'Bearer realm="http://{fake.host}/token",service="fake"{scope}'
            self.error(401, "UNAUTHORIZED", "authentication required", {"WWW-Authenticate": challenge})
            return
        self.serve(request, fault.after if isinstance(fault, Cut) else None)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_any

    # authentication

    def scope(self, request: Request) -> str:
        match = re.match(r"/v2/(.+)/(?:blobs|manifests|tags)/", request.path)
        actions = {"GET": "pull", "HEAD": "pull"}.get(request.method, "pull,push")
        return f"repository:{match[1]}:{actions}" if match else ""

    def allowed(self, request: Request) -> bool:
        scopes = self.fake.valid.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if scopes is None:
            return False
        wanted = self.scope(request)
        if not wanted:
            return True
        name, _, actions = wanted.rpartition(":")
        return any(
            s.rpartition(":")[0] == name and set(actions.split(",")) <= set(s.rpartition(":")[2].split(","))
            for s in scopes
        )

    def token(self, request: Request) -> None:
        fake = self.fake
        request.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with fake.lock:
            fake.tokens.append(request)
        if fake.token_answer is not None:
            self.reply(fake.token_answer.status, fake.token_answer.body, fake.token_answer.headers)
            return
        if request.method == "POST":
            form = parse_qs(request.body.decode())
            good, scopes = (
                form.get("refresh_token") == [fake.identity_token],
                form.get("scope", [""])[0].split(),
            )
        else:
            basic = base64.b64encode(":".join(fake.token_user or ("", "")).encode()).decode()
            good, scopes = (
                request.headers.get("authorization") == f"Basic {basic}",
                request.query.get("scope", []),
            )
        if not good:
            self.error(401, "UNAUTHORIZED", "wrong credentials")
            return
        token = uuid.uuid4().hex
        fake.valid[token] = set(scopes)
        self.reply(200, json.dumps({"token": token, "expires_in": 300}).encode())

    # the registry

    def serve(self, request: Request, cut: int | None) -> None:
        fake, path, method = self.fake, request.path, request.method
        if path == "/v2/":
            self.reply(200, b"{}")
        elif match := re.fullmatch(r"/v2/(.+)/blobs/uploads/([^/]*)", path):
            self.upload(request, match[1], match[2])
        elif match := re.fullmatch(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})", path):
            data = fake.blobs.get(match[1], {}).get(match[2])
            if data is None:
                self.error(404, "BLOB_UNKNOWN", "blob unknown to registry")
            elif fake.redirect_blobs_to:
                self.reply(307, b"", {"Location": f"{fake.redirect_blobs_to}{path}"})
            else:
                self.blob(request, data, cut)
        elif match := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path):
            self.manifest(request, match[1], match[2])
        elif fake.lists_referrers and (
            match := re.fullmatch(r"/v2/(.+)/referrers/(sha256:[0-9a-f]{64})", path)
        ):
            self.referrers(request, match[1], match[2])
        else:
            self.error(404, "NAME_UNKNOWN", f"{method} {path}")

    def blob(self, request: Request, data: bytes, cut: int | None) -> None:
        start = 0
        headers = {"Docker-Content-Digest": sha256(data)}
        if match := re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", "")):
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if cut is not None:
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            for item in headers.items():
                self.send_header(*item)
            self.end_headers()
            self.wfile.write(data[start : start + cut])
            self.hang_up(reset=False)
            return
        self.reply(206 if start else 200, data[start:], headers)

    def upload(self, request: Request, repo: str, session: str) -> None:
        fake, method = self.fake, request.method
        if method == "POST":
            digest, source = request.query.get("mount", [""])[0], request.query.get("from", [""])[0]
            if digest in fake.blobs.get(source, {}):
                fake.blobs.setdefault(repo, {})[digest] = fake.blobs[source][digest]
                self.reply(201, b"", {"Location": f"/v2/{repo}/blobs/{digest}"})
                return
            session = uuid.uuid4().hex
            fake.uploads[session] = bytearray()
            self.reply(202, b"", {"Location": f"/v2/{repo}/blobs/uploads/{session}?_state=a", "Range": "0-0"})
            return
        if session not in fake.uploads:
            self.error(404, "BLOB_UPLOAD_UNKNOWN", "upload unknown")
            return
        data = fake.uploads[session]
        place = {"Location": f"/v2/{repo}/blobs/uploads/{session}?_state={len(data)}"}
        limit = fake.patch_limit if method == "PATCH" else fake.put_limit if method == "PUT" else None
        if limit is not None and len(request.body) > limit:
            self.error(413, "SIZE_INVALID", f"no more than {limit} bytes at once")
        elif method == "GET":
            self.reply(204, b"", {**place, "Range": f"0-{max(len(data) - 1, 0)}"})
        elif method == "DELETE":
            del fake.uploads[session]
            self.reply(204, b"")
        elif method == "PATCH":
            if int(request.headers["content-range"].partition("-")[0]) != len(data):
                self.reply(416, b"", {**place, "Range": f"0-{max(len(data) - 1, 0)}"})
                return
            data += request.body
            self.reply(202, b"", {**place, "Range": f"0-{len(data) - 1}"})
        else:
            data += request.body
            if sha256(bytes(data)) != request.query["digest"][0]:
                self.error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
                return
            fake.put(repo, bytes(data))
            del fake.uploads[session]
            self.reply(201, b"", {"Location": f"/v2/{repo}/blobs/{request.query['digest'][0]}"})

    def manifest(self, request: Request, repo: str, ref: str) -> None:
        there = self.fake.manifests.setdefault(repo, {})
        if request.method == "PUT":
            digest = sha256(request.body)
            there[ref] = there[digest] = (request.body, request.headers["content-type"])
            subject = (json.loads(request.body).get("subject") or {}).get("digest")
            known = {"OCI-Subject": subject} if subject and self.fake.lists_referrers else {}
            self.reply(201, b"", {"Docker-Content-Digest": digest, **known})
        elif ref in there:
            data, media_type = there[ref]
            digest = sha256(data)
            headers = {"Content-Type": media_type, "Docker-Content-Digest": digest}
            self.reply(200, data, headers)
        else:
            self.error(404, "MANIFEST_UNKNOWN", "manifest unknown")

    def referrers(self, request: Request, repo: str, subject: str) -> None:
        found = []
        for ref, (data, media_type) in sorted(self.fake.manifests.get(repo, {}).items()):
            manifest = json.loads(data)
            if ref == sha256(data) and (manifest.get("subject") or {}).get("digest") == subject:
                entry = {
                    "mediaType": media_type,
                    "digest": ref,
                    "size": len(data),
                    "artifactType": manifest["artifactType"],
                }
                found.append({**entry, "annotations": manifest.get("annotations", {})})
        start = int(request.query.get("from", ["0"])[0])
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": found[start : start + 2]}
        more = {"Link": f'<{request.path}?from={start + 2}>; rel="next"'} if start + 2 < len(found) else {}
        self.reply(200, json.dumps(index).encode(), {"Content-Type": INDEX, **more})

    # answers

    def error(self, status: int, code: str, message: str, headers: dict[str, Any] | None = None) -> None:
        self.reply(status, json.dumps({"errors": [{"code": code, "message": message}]}).encode(), headers)

    def reply(self, status: int, body: bytes, headers: dict[str, Any] | None = None) -> None:
        headers = {**(headers or {}), "Content-Length": str(len(body))}
        self.send_response(self.fake.oddity(self.request_read, status, headers))
        for name, value in headers.items():
            for one in value if isinstance(value, list) else [value]:
                self.send_header(name, one)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def hang_up(self, reset: bool = True) -> None:
        self.wfile.flush()
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
        self.close_connection = True
