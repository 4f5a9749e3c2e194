"""Requests to a registry: retries, redirects, schemes."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from builder.core.errors import RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Image
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.formats.registry import transport
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS, Credentials
from builder.formats.registry.push import push_image
from tests.support.blobs import described, random_blob
from tests.support.blobs import upload as send
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, Request

ROBOT = Credentials("robot$m558+site", "pa$$w0rd-s3cret", source="REGISTRY_USER and REGISTRY_PASSWORD")


def test_waits_grow_and_end(fake: FakeRegistry, client: RegistryClient, waits: list[float]) -> None:
    """Without Retry-After the waits grow, and the sixth attempt is the last one."""
    fake.fault = lambda request: Reply(503, body=b"<html>busy</html>")
    with pytest.raises(RegistryError, match="503") as caught:
        client.manifests.head("a/b", "latest")
    assert "fault of the registry" in caught.value.hint
    assert len(waits) == transport.TRIES - 1 and all(b > a for a, b in zip(waits, waits[1:], strict=False))


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_each_third_connection_is_dropped(fake: FakeRegistry, image: Image, dropped: int) -> None:
    """A push ends although each third request, the first one of all too, is dropped."""
    count = itertools.count()
    fake.fault = lambda r: Cut() if next(count) % 3 == dropped else None
    with RegistryClient(fake.host, ANONYMOUS, sleep=lambda seconds: None) as client:
        push_image(image, client, "a/b")
    assert image.digest in fake.manifests["a/b"]


@pytest.mark.parametrize("drops", [1, 2, transport.TRIES - 1])
def test_first_connections_are_dropped(fake: FakeRegistry, image: Image, drops: int) -> None:
    """A registry on this machine that drops the first connections is asked again over plain http."""
    count = itertools.count()
    fake.fault = lambda r: Cut() if next(count) < drops else None
    with RegistryClient(fake.host, ANONYMOUS, sleep=lambda seconds: None) as client:
        push_image(image, client, "a/b")
    assert image.digest in fake.manifests["a/b"]


def test_every_request_waits(tmp_path: Path, store: Store, waits: list[float]) -> None:
    """Each request is repeated after as many seconds as the registry says: also of blobs, and for tokens."""
    path, data = random_blob(tmp_path, 3 << 20)
    small = b"small"
    busy: dict[tuple[str, str], int] = {}

    def oddity(request: Request, status: int, headers: dict[str, Any]) -> int:
        kind = re.sub("(sha256:|uploads/).+", r"\1...", request.path)
        if request.method == "HEAD" and "/blobs/" in kind and status == 200:
            return 405  # so that GET is asked
        busy[request.method, kind] = busy.get((request.method, kind), 0) + 1
        if busy[request.method, kind] > 1:
            return status
        headers["Retry-After"] = "7"
        return 429

    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake:
        fake.lists_referrers, fake.oddity, fake.put_limit = True, oddity, 1 << 20
        digest = fake.put("a/b", small)
        with RegistryClient(fake.host, ROBOT, sleep=waits.append) as client:
            send(client, path, data)
            assert client.blobs.has("a/b", described(data))
            client.manifests.put("a/b", "t", b"{}", OCI_MANIFEST)
            assert client.manifests.head("a/b", "t") and client.manifests.get("a/b", "t")
            assert client.manifests.get_referrers("a/b", digest) == []
            busy.pop(("GET", "/v2/a/b/blobs/sha256:..."))
            assert client.blobs.download_to_store("a/b", described(data), store).read_bytes() == data
            busy.pop(("GET", "/v2/a/b/blobs/sha256:..."))
            assert client.blobs.hash("a/b", described(small)) == (digest, len(small))
        assert fake.has("a/b", data)
    session = "/v2/a/b/blobs/uploads/..."
    assert {("GET", "/token"), ("GET", session), ("PATCH", session), ("PUT", session)} <= busy.keys()
    assert {"/v2/a/b/blobs/sha256:...", "/v2/a/b/blobs/uploads/", "/v2/a/b/referrers/sha256:..."} <= {
        kind for _, kind in busy
    }
    assert waits.count(7) == len(busy) + 2 - 1, "any answer says which scheme it is"


def test_start_page_is_busy(fake: FakeRegistry, waits: list[float]) -> None:
    """Where a registry hides images from strangers, ``/v2/`` is asked again if it is busy."""
    faults: list[Reply] = []
    private = fake.put("a/b", b"private")
    fake.fault = lambda r: (
        faults.pop(0)
        if r.path == "/v2/" and faults
        else Reply(401, {"WWW-Authenticate": 'Basic realm="x"'})
        if r.path == "/v2/"
        else None
        if "authorization" in r.headers
        else Reply(404)
    )
    fake.manifests["a/b"] = {private: (b"private", OCI_MANIFEST)}
    with RegistryClient(fake.host, ROBOT, sleep=waits.append) as client:
        client.scheme  # noqa: B018 - asks /v2/, too
        faults += [Reply(429, {"Retry-After": "7"})] * 2
        found = client.manifests.head("a/b", private)
    assert found and found.digest == private and waits == [7, 7]


def test_silence_ends(
    fake: FakeRegistry, client: RegistryClient, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer for so long no request of the command is repeated, whatever Retry-After says."""
    now = [1000.0]
    monkeypatch.setattr(transport.time, "monotonic", lambda: now[0] + sum(waits))
    monkeypatch.setattr(transport, "MAX_FAILING_S", 200.0)
    fake.fault = lambda request: Reply(503, {"Retry-After": "100000"})
    for requests in (3, 4):
        with pytest.raises(RegistryError, match="503"):
            client.manifests.head("a/b", "latest")
        assert waits == [transport.MAX_WAIT_S] * 2 and len(fake.requests) == requests
    fake.fault = lambda request: None
    assert client.manifests.head("a/b", "latest") is None
    fake.fault = lambda request: Cut()
    waits.clear()
    with pytest.raises(RegistryError, match="the connection broke"):
        client.manifests.head("a/b", "latest")
    assert len(waits) == transport.TRIES - 1, "after an answer the time begins again"


PAGE = Reply(200, {"Content-Type": "text/html; charset=utf-8"}, b"<!doctype html><h1>Log in</h1>")


@pytest.mark.parametrize("redirects", [False, True], ids=["in its place", "elsewhere"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda client, store: client.manifests.head("a/b", "t"),
        lambda client, store: client.manifests.get("a/b", "t"),
        lambda client, store: client.blobs.has("a/b", described(b"layer")),
        lambda client, store: client.blobs.get("a/b", described(PAGE.body)),
        lambda client, store: client.blobs.hash("a/b", described(PAGE.body)),
        lambda client, store: client.blobs.download_to_store("a/b", described(PAGE.body), store),
    ],
    ids=["head", "manifest", "has", "get", "hash", "download"],
)
def test_web_page(
    fake: FakeRegistry, client: RegistryClient, store: Store, redirects: bool, ask: Any
) -> None:
    """A page for people in place of a registry is called that; nobody compares its digest."""
    fake.fault = lambda r: (
        Reply(302, {"Location": "/login?token=abc"}) if redirects and r.path != "/login" else PAGE
    )
    with pytest.raises(RegistryError, match=f"^{fake.host} answers with a web page, not a reg") as caught:
        ask(client, store)
    assert "abc" not in caught.value.message and len(fake.requests) == 1 + redirects
    assert caught.value.message.endswith("/login") == redirects


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_web_page_for_a_push(fake: FakeRegistry, client: RegistryClient, tmp_path: Path, method: str) -> None:
    """A push ends at a page, too."""
    path, data = random_blob(tmp_path, 3 << 20)
    fake.put_limit = 1 << 20 if method == "PATCH" else None
    fake.fault = lambda r: PAGE if r.method == method else None
    with pytest.raises(RegistryError, match="answers with a web page, not a registry"):
        send(client, path, data)
    if method == "PUT":
        with pytest.raises(RegistryError, match="answers with a web page, not a registry"):
            client.manifests.put("a/b", "t", b"{}", OCI_MANIFEST)


def test_answers_called_pages(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """Pulp calls answers without a body pages, and servers that guess types a blob that is one."""
    path, data = random_blob(tmp_path, 1000)

    def oddity(request: Request, status: int, headers: dict[str, Any]) -> int:
        headers |= {"Content-Type": "text/html", "Docker-Distribution-API-Version": "registry/2.0"}
        return 200 if status == 201 else status

    fake.oddity = oddity
    send(client, path, data)
    fake.oddity = lambda r, status, headers: headers.update({"Content-Type": "text/html"}) or status
    fake.put("a/b", PAGE.body)
    assert client.blobs.get("a/b", described(PAGE.body)) == PAGE.body


@pytest.mark.parametrize("redirects", [9, 10])
def test_as_many_redirects_as_go(fake: FakeRegistry, client: RegistryClient, redirects: int) -> None:
    """Nine redirects are followed, as clients in Go do, and the tenth is not."""
    fake.fault = lambda r: (
        Reply(307, {"Location": f"{r.path}?n={n + 1}"})
        if (n := int(r.query.get("n", ["0"])[0])) < redirects
        else None
    )
    with contextlib.nullcontext() if redirects == 9 else pytest.raises(RegistryError, match="redirect 10"):
        assert client.manifests.head("a/b", "latest") is None


def test_redirect_without_credentials(store: Store) -> None:
    """Credentials are not sent to the host that the registry redirects to."""
    data = b"layer" * 1000
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake, FakeRegistry() as bucket:
        fake.put("a/b", data)
        bucket.put("a/b", data)
        fake.redirect_blobs_to = f"http://{bucket.host}"
        with RegistryClient(fake.host, ROBOT) as client:
            assert client.blobs.download_to_store("a/b", described(data), store).read_bytes() == data
        assert any("authorization" in r.headers for r in fake.requests)
        assert bucket.requests and not any("authorization" in r.headers for r in bucket.requests)


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("asks", [True, False], ids=["token", "anonymous"])
def test_redirected_push(tmp_path: Path, status: int, asks: bool) -> None:
    """Requests of a push are sent again, whole, to where 307 and 308 lead on the same host."""
    path, data = random_blob(tmp_path, 3 << 20)
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password) if asks else None) as fake:
        fake.put_limit = 1 << 20  # so that chunks are sent, too

        def fault(request: Request) -> Reply | None:
            if request.method not in ("POST", "PUT", "PATCH") or request.query.get("again"):
                return None
            query = urlencode({**{key: value[0] for key, value in request.query.items()}, "again": 1})
            return Reply(status, {"Location": f"{request.path}?{query}"})

        fake.fault = fault
        with RegistryClient(fake.host, ROBOT) as client:
            send(client, path, data)
            client.manifests.put("a/b", "t", b"{}", OCI_MANIFEST)
        assert fake.has("a/b", data) and fake.manifests["a/b"]["t"][0] == b"{}"
        assert {r.method for r in fake.requests if r.query.get("again")} == {"POST", "PUT", "PATCH"}


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
def test_push_to_another_host(tmp_path: Path, method: str) -> None:
    """Where a push is redirected to another host, that host gets the bytes, and no credentials."""
    path, data = random_blob(tmp_path, 1000)
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake, FakeRegistry() as other:
        other.uploads = fake.uploads
        other.blobs = fake.blobs
        fake.fault = lambda r: (
            Reply(307, {"Location": f"http://{other.host}{r.path}?{urlencode(r.query, doseq=True)}"})
            if r.method == method
            else None
        )
        with RegistryClient(fake.host, ROBOT) as client:
            client.blobs._chunk.size = 600 if method == "PATCH" else 0
            send(client, path, data)
        assert fake.has("a/b", data) and other.count(method)
        assert not any("authorization" in r.headers for r in other.requests)


@pytest.mark.parametrize("status", [301, 302, 303])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_push_that_would_become_a_get(
    fake: FakeRegistry, client: RegistryClient, status: int, method: str, tmp_path: Path
) -> None:
    """A push is not redirected by a status after which clients send GET: it is refused, with a hint."""
    path, data = random_blob(tmp_path, 1000)
    fake.fault = lambda r: Reply(status, {"Location": "/elsewhere"}) if r.method == method else None
    with pytest.raises(RegistryError, match=rf"\b{status}\b") as caught:
        send(client, path, data)
    assert "use the address that it redirects to" in caught.value.hint and not fake.count("GET")


def test_refusal_of_another_host(fake: FakeRegistry, client: RegistryClient) -> None:
    """An error names the host that refused, where the registry redirects."""
    with FakeRegistry() as other:
        other.fault = lambda r: Reply(403)
        fake.fault = lambda r: Reply(307, {"Location": f"http://{other.host}{r.path}"})
        with pytest.raises(RegistryError, match=f"{fake.host} did not .*: {other.host} answered 403") as e:
            client.manifests.put("a/b", "t", b"{}", OCI_MANIFEST)
        assert "gets no credentials" in e.value.hint


def encrypted(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, tuple[int, dict[str, str]]], body: Any = b""
) -> list[httpx2.Request]:
    """Replaces the network by ``answers`` (by method); returns the list that the requests are added to."""
    seen: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        status, headers = answers.get(request.method, (404, {}))
        stream = httpx2.ByteStream(body) if isinstance(body, bytes) else None
        return httpx2.Response(status, headers=headers, stream=stream, content=None if stream else body)

    make = httpx2.Client
    monkeypatch.setattr(httpx2, "Client", lambda **kw: make(transport=httpx2.MockTransport(handle)))
    return seen


@pytest.mark.parametrize(
    ("method", "status"), [("POST", 307), ("PATCH", 307), ("PUT", 307), ("POST", 202), ("PATCH", 202)]
)
def test_push_stays_encrypted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, status: int
) -> None:
    """An https registry that redirects a push to http, or names such an address, gets no further byte."""
    session, elsewhere = {"Location": "/v2/x"}, {"Location": "http://other.example/v2/x"}
    answers = {"POST": (202, session), "PUT": (413, {}), method: (status, elsewhere)}
    seen = encrypted(monkeypatch, answers)
    path, data = random_blob(tmp_path, 3 << 20)
    client = RegistryClient("registry.example", ANONYMOUS, sleep=lambda s: None)
    with client, pytest.raises(RegistryError, match="http://other.example/v2/x, which is not encrypted"):
        send(client, path, data)
    assert {(r.url.scheme, r.url.host) for r in seen} == {("https", "registry.example")}


def test_own_address_without_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A registry behind a proxy names its own address with http: it is used with https."""
    session = {"Location": "http://registry.example/v2/x"}
    seen = encrypted(monkeypatch, {"POST": (202, session), "PUT": (201, {})})
    path, data = random_blob(tmp_path, 1000)
    with RegistryClient("registry.example", ANONYMOUS) as client:
        send(client, path, data)
    assert {r.url.scheme for r in seen} == {"https"}


def test_download_stays_encrypted(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """An https registry that redirects a blob to http is not followed."""
    seen = encrypted(monkeypatch, {"GET": (307, {"Location": "http://other.example/x"})})
    client = RegistryClient("registry.example", ANONYMOUS)
    with client, pytest.raises(RegistryError, match="not encrypted"):
        client.blobs.download_to_store("a/b", described(b"x"), store)
    assert len(seen) == 1


def test_pages_stay_at_the_registry(fake: FakeRegistry, client: RegistryClient) -> None:
    """Of the address of a next page only path and query count."""
    digest = "sha256:" + "1" * 64
    link = {"Link": f'<http://169.254.169.254/v2/a/b/referrers/{digest}?last=a>; rel="next"'}
    body = b'{"schemaVersion":2,"manifests":[]}'

    def fault(request: Request) -> Reply:
        following = {} if request.query.get("last") else link
        return Reply(200, {"Content-Type": OCI_INDEX, **following}, body)

    fake.fault = fault
    assert client.manifests.get_referrers("a/b", digest) == []
    assert [r.query for r in fake.requests] == [{}, {"last": ["a"]}]


def test_error_of_one_line(fake: FakeRegistry, client: RegistryClient) -> None:
    """Line breaks and control characters of an error are blanks in the message."""
    body = json.dumps({"errors": [{"code": "DENIED", "message": "a\nb\x1b[2J"}]}).encode()
    fake.fault = lambda r: Reply(403, body=body)
    with pytest.raises(RegistryError, match="DENIED: a b ") as caught:
        client.manifests.get("a/b", "t")
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("states", [True, False], ids=["Content-Length", "no Content-Length"])
def test_large_manifest(monkeypatch: pytest.MonkeyPatch, states: bool) -> None:
    """A manifest beyond the limit is refused while it is read, whatever size is stated."""
    monkeypatch.setattr(transport, "TRIES", 1)
    read = []

    def body() -> Iterator[bytes]:
        for _ in range(100):
            read.append(1)
            yield bytes(1 << 20)

    headers = {"Content-Length": str(100 << 20)} if states else {}
    encrypted(monkeypatch, {"GET": (200, headers)}, body())
    client = RegistryClient("registry.example", ANONYMOUS)
    with client, pytest.raises(RegistryError, match="more than 8 MiB"):
        client.manifests.get("a/b", "t")
    assert len(read) == 9


def test_connection_refused() -> None:
    """A port where nothing listens is an error at once."""
    with (
        RegistryClient("127.0.0.1:1", ANONYMOUS) as client,
        pytest.raises(RegistryError, match=r"127\.0\.0\.1:1: it refuses connections"),
    ):
        client.manifests.head("a/b", "t")


def test_no_plain_http_to_other_machines() -> None:
    """Plain http is used for registries on this machine only; nothing is sent to find out."""
    with RegistryClient("registry.example:5000", ANONYMOUS) as client:
        assert client.scheme == "https"


def test_offline(tmp_path: Path) -> None:
    """BUILDER_OFFLINE forbids registries on other machines only."""
    settings = Settings(tmp_path, tmp_path, 1, offline=True)
    with pytest.raises(RegistryError, match="BUILDER_OFFLINE"):
        RegistryClient("ghcr.io", settings=settings)
    RegistryClient("127.0.0.1:5000", settings=settings)
