"""The client against a registry that misbehaves."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.errors import HashMismatch, RegistryError
from builder.model import OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor
from builder.registry import transport, upload
from builder.registry.credentials import ANONYMOUS, Credentials
from builder.registry.client import RegistryClient
from builder.registry.tls import is_loopback
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, sha256

MIB = 1 << 20
ROBOT = Credentials("robot$m558+site", "pa$$w0rd-s3cret", source="REGISTRY_USER and REGISTRY_PASSWORD")


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def client(fake: FakeRegistry, waits: list[float]) -> Iterator[RegistryClient]:
    with RegistryClient(fake.host, ANONYMOUS, sleep=waits.append) as client:
        client.ping()
        yield client


def blob(tmp_path: Path, size: int) -> tuple[Path, bytes]:
    data = random.Random(size).randbytes(size)
    path = tmp_path / f"blob-{size}"
    path.write_bytes(data)
    return path, data


def send(client: RegistryClient, path: Path, data: bytes) -> list[int]:
    told: list[int] = []
    client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path, told.append)
    assert sum(told) == len(data), "progress adds up, whatever had to go twice"
    return told


# uploads


def test_a_blob_goes_out_in_two_requests(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    path, data = blob(tmp_path, 3 * MIB + 5)
    send(client, path, data)
    assert fake.has("a/b", data)
    assert [r.method for r in fake.requests if r.path != "/v2/"] == ["POST", "PUT"]
    assert client.head_blob("a/b", sha256(data)) == len(data)


def test_an_empty_blob(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    path, data = blob(tmp_path, 0)
    send(client, path, data)
    assert fake.has("a/b", b"")


def test_a_cut_connection_goes_on_where_the_registry_stands(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    path, data = blob(tmp_path, 20 * MIB)
    fake.fail_once("PUT", "/uploads/", Cut(after=9 * MIB))
    send(client, path, data)
    assert fake.has("a/b", data)
    patched = sum(len(r.body) for r in fake.requests if r.method == "PATCH")
    assert patched == 11 * MIB, "only the rest goes out again"
    assert fake.count("POST") == 1, "in the same session"


def test_a_lost_session_is_begun_anew(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    path, data = blob(tmp_path, 5 * MIB)
    fake.fail_once("PUT", "/uploads/", Reply(404, body=b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}'))
    done = fake.fault

    def forget(request: Any) -> Any:
        answer = done(request)
        if answer:
            fake.uploads.clear()
        return answer

    fake.fault = forget
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count("POST") == 2


def test_only_the_answer_was_lost(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    path, data = blob(tmp_path, 2 * MIB)

    def fault(request: Any) -> Any:
        if request.method == "PUT":
            fake.put("a/b", data)
            return Cut(after=2 * MIB)
        return None

    fake.fault = fault
    send(client, path, data)
    assert fake.count("PUT") == 1, "the registry has it: nothing is sent again"


@pytest.mark.parametrize("limit", [4 * MIB, MIB])
def test_bodies_too_large_are_cut_into_chunks_and_that_is_remembered(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path, limit: int
) -> None:
    fake.put_limit = fake.patch_limit = limit
    first, data = blob(tmp_path, 24 * MIB)
    send(client, first, data)
    assert fake.has("a/b", data)
    too_large = [r.method for r in fake.requests if len(r.body) > limit]
    assert too_large[0] == "PUT" and len(too_large) <= 3, "the size comes down fast"
    refused = fake.count("PUT")
    second, more = blob(tmp_path, 23 * MIB)
    send(client, second, more)
    assert fake.has("a/b", more)
    assert fake.count("PUT") == refused + 1, "the second blob ends with one empty PUT: it was not tried whole"


def test_a_refusal_before_the_body_is_read(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    path, data = blob(tmp_path, 12 * MIB)
    fake.fail_once("PUT", "/uploads/", Reply(413, drain=False))
    send(client, path, data)
    assert fake.has("a/b", data)


def test_hosts_with_small_chunks(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(upload.CHUNKS, fake.host, 4 * MIB)
    fake.patch_limit = 4 * MIB
    path, data = blob(tmp_path, 40 * MIB)
    fake.fail_once("PUT", "/uploads/", Cut(after=1000))
    send(client, path, data)
    assert fake.has("a/b", data)
    sizes = [len(r.body) for r in fake.requests if r.method == "PATCH"]
    assert max(sizes) == 4 * MIB and len(sizes) == 10, "no chunk had to be refused first"


def test_the_least_chunk_of_the_registry_is_kept(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    path, data = blob(tmp_path, 12 * MIB)
    session = "fixed"
    fake.uploads[session] = bytearray()
    seen: list[str] = []

    def fault(request: Any) -> Any:
        seen.append(request.method)
        if request.method == "POST":
            return Reply(
                202, {"Location": f"/v2/a/b/blobs/uploads/{session}", "OCI-Chunk-Min-Length": str(5 * MIB)}
            )
        if request.method == "PUT" and seen.count("PUT") == 1:
            return Reply(413)
        return None

    fake.fault = fault
    send(client, path, data)
    assert [len(r.body) for r in fake.requests if r.method == "PATCH"] == [5 * MIB, 5 * MIB, 2 * MIB]


def test_too_large_at_any_size_is_said(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    fake.put_limit = fake.patch_limit = 1000
    path, data = blob(tmp_path, 3 * MIB)
    with pytest.raises(RegistryError, match=r"413 .*no more than 1000 bytes") as caught:
        send(client, path, data)
    assert "quota" in caught.value.hint


def test_retry_after_is_obeyed(
    fake: FakeRegistry, client: RegistryClient, waits: list[float], tmp_path: Path
) -> None:
    path, data = blob(tmp_path, MIB)
    fake.fail_once("POST", "/uploads/", Reply(429, {"Retry-After": "7"}), times=2)
    send(client, path, data)
    assert fake.has("a/b", data) and waits == [7.0, 7.0]
    fake.fail_once("PUT", "/uploads/", Reply(503, {"Retry-After": "3"}))
    path, data = blob(tmp_path, MIB + 1)
    send(client, path, data)
    assert fake.has("a/b", data) and waits == [7.0, 7.0, 3.0]


def test_waits_grow_and_end(fake: FakeRegistry, client: RegistryClient, waits: list[float]) -> None:
    fake.fault = lambda request: Reply(503, body=b"<html>busy</html>")
    with pytest.raises(RegistryError, match="503") as caught:
        client.head_manifest("a/b", "latest")
    assert "fault of the registry" in caught.value.hint
    assert len(waits) == transport.TRIES - 1 and all(b > a for a, b in zip(waits, waits[1:], strict=False))


def test_a_registry_that_never_gets_on_is_given_up(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    path, data = blob(tmp_path, MIB)
    fake.fault = lambda request: Cut() if request.method in ("PUT", "PATCH") else None
    with pytest.raises(RegistryError, match="the connection broke") as caught:
        send(client, path, data)
    assert "not sent again" in caught.value.hint
    assert fake.count("PUT") + fake.count("PATCH") == transport.TRIES


def test_a_file_that_is_not_its_digest(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    path, data = blob(tmp_path, MIB)
    with pytest.raises(RegistryError, match="DIGEST_INVALID") as caught:
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(b"other"), len(data)), path)
    assert "damaged" in caught.value.hint
    with pytest.raises(RegistryError, match="has 1048576 bytes, expected 5"):
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), path)
    with pytest.raises(RegistryError, match="cannot read the layer"):
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), tmp_path / "gone")


def test_a_mount_that_does_not_come_off_leaves_nothing(fake: FakeRegistry, client: RegistryClient) -> None:
    digest = fake.put("other/repo", b"layer")
    assert client.mount_blob("a/b", digest, "other/repo") and fake.has("a/b", b"layer")
    assert not client.mount_blob("a/b", sha256(b"unknown"), "other/repo")
    assert not fake.uploads, "the upload that was begun instead is cancelled"
    fake.fail_once("POST", "/uploads/", Reply(403))
    assert not client.mount_blob("a/b", digest, "secret/repo")


# downloads


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def described(data: bytes) -> Descriptor:
    return Descriptor(OCI_LAYER_GZIP, sha256(data), len(data))


def test_a_download_goes_on_after_a_cut(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    data = random.Random(1).randbytes(6 * MIB)
    fake.put("a/b", data)
    fake.fail_once("GET", "/blobs/", Cut(after=4 * MIB))
    told: list[int] = []
    path = client.get_blob_to("a/b", described(data), store, told.append)
    assert path.read_bytes() == data and sum(told) == len(data)
    ranges = [r.headers.get("range") for r in fake.requests if r.method == "GET" and "/blobs/" in r.path]
    assert ranges == [None, f"bytes={4 * MIB}-"]
    assert client.get_blob_to("a/b", described(data), store) == path
    assert fake.count("GET", "/blobs/") == 2, "what is in the store is not asked for"


def test_a_killed_download_is_gone_on_with(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    data = random.Random(2).randbytes(3 * MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(data[: 2 * MIB])
    assert client.get_blob_to("a/b", described(data), store).read_bytes() == data
    assert [r.headers.get("range") for r in fake.requests if "/blobs/" in r.path] == [f"bytes={2 * MIB}-"]
    assert not partial.exists()


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * (4 * MIB), b"x" * (3 * MIB)])
def test_a_damaged_partial_is_thrown_away(
    fake: FakeRegistry, client: RegistryClient, store: Store, left: bytes
) -> None:
    data = random.Random(3).randbytes(3 * MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    told: list[int] = []
    assert client.get_blob_to("a/b", described(data), store, told.append).read_bytes() == data
    assert sum(told) == len(data)


def test_a_registry_that_ignores_ranges(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    data = random.Random(4).randbytes(2 * MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(data[: MIB + 3])
    fake.fault = lambda r: Reply(200, body=data) if "/blobs/" in r.path else None
    assert client.get_blob_to("a/b", described(data), store).read_bytes() == data
    assert fake.count("GET", "/blobs/") == 1, "what comes twice is skipped"


def test_another_blob_than_asked_for_is_refused(
    fake: FakeRegistry, client: RegistryClient, store: Store
) -> None:
    data = b"good" * 1000
    fake.blobs["a/b"] = {sha256(data): b"evil" * 1000}
    with pytest.raises(HashMismatch, match="different content .* twice"):
        client.get_blob_to("a/b", described(data), store)
    assert store.get(sha256(data)) is None and not list((store.root / "partial").iterdir())


def test_a_manifest_is_checked(fake: FakeRegistry, client: RegistryClient) -> None:
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST), sha256(b"x"): (data, OCI_MANIFEST)}
    assert client.get_manifest("a/b", "t") == (data, OCI_MANIFEST, sha256(data))
    assert client.head_manifest("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))
    assert client.head_manifest("a/b", "none") is None
    with pytest.raises(HashMismatch):
        client.get_manifest("a/b", sha256(b"x"))


def test_a_head_without_digest_is_made_up_for(fake: FakeRegistry, client: RegistryClient) -> None:
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST)}
    fake.fault = lambda r: Reply(200, {"Content-Type": OCI_MANIFEST}) if r.method == "HEAD" else None
    assert client.head_manifest("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))


# authentication


def test_bearer_one_token_serves_a_whole_push(tmp_path: Path) -> None:
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT) as client,
    ):
        client.expect_push("a/b")
        assert client.head_manifest("a/b", "latest") is None
        path, data = blob(tmp_path, 2 * MIB)
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        client.put_manifest("a/b", "latest", b"{}", OCI_MANIFEST)
        assert fake.has("a/b", data) and len(fake.tokens) == 1
        assert fake.tokens[0].query == {"service": ["fake"], "scope": ["repository:a/b:pull,push"]}
        digest = fake.put("base/os", b"base")
        assert client.mount_blob("a/b", digest, "base/os")
        assert fake.tokens[1].query["scope"] == ["repository:a/b:pull,push", "repository:base/os:pull"]


def test_a_token_that_ran_out_is_renewed(tmp_path: Path) -> None:
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT) as client,
    ):
        client.expect_push("a/b")
        client.head_blob("a/b", sha256(b""))
        fake.valid.clear()
        path, data = blob(tmp_path, 3 * MIB)
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        assert fake.has("a/b", data) and len(fake.tokens) == 2


def test_identity_token_goes_by_post() -> None:
    with FakeRegistry(identity_token="refresh-s3cret") as fake:
        with RegistryClient(fake.host, Credentials(identity_token="refresh-s3cret", source="file")) as client:
            assert client.head_blob("a/b", sha256(b"")) is None
        assert [r.method for r in fake.tokens] == ["POST"]
        assert "s3cret" not in fake.tokens[0].path and not fake.tokens[0].query


def test_the_wrong_password_names_its_source_and_never_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with FakeRegistry(token_user=("someone", "else")) as fake:
        for credentials, says in (
            (ROBOT, "the credentials of REGISTRY_USER and REGISTRY_PASSWORD were used"),
            (ANONYMOUS, "no credentials for"),
        ):
            with (
                RegistryClient(fake.host, credentials) as client,
                pytest.raises(RegistryError, match="401") as caught,
            ):
                client.head_manifest("a/b", "latest")
            assert says in caught.value.hint
            assert "s3cret" not in f"{caught.value!r}{caught.value}{client!r}{caplog.text}"
            assert caught.value.__cause__ is None


def test_a_denied_push_says_so() -> None:
    with FakeRegistry() as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.fault = lambda r: Reply(403, body=b'{"errors":[{"code":"DENIED","message":"no push for you"}]}')
        with pytest.raises(RegistryError, match=r"403 Forbidden \(DENIED: no push for you\)"):
            client.put_manifest("a/b", "t", b"{}", OCI_MANIFEST)


def test_a_redirect_to_another_host_takes_no_credentials_along(store: Store) -> None:
    data = b"layer" * 1000
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake, FakeRegistry() as bucket:
        fake.put("a/b", data)
        bucket.put("a/b", data)
        fake.redirect_blobs_to = f"http://{bucket.host}"
        with RegistryClient(fake.host, ROBOT) as client:
            assert client.get_blob_to("a/b", described(data), store).read_bytes() == data
        assert any("authorization" in r.headers for r in fake.requests)
        assert bucket.requests and not any("authorization" in r.headers for r in bucket.requests)


def test_redirects_in_a_circle_end() -> None:
    with FakeRegistry() as fake, RegistryClient(fake.host, ANONYMOUS) as client:
        fake.put("a/b", b"x")
        fake.redirect_blobs_to = f"http://{fake.host}"
        with pytest.raises(RegistryError, match="does not follow"):
            client.head_blob("a/b", sha256(b"x"))


@pytest.mark.parametrize(
    "realm", ["http://a:port/x", "http://[", "/token", "ftp://x/token", "http://127.0.0.1:1/token"]
)
def test_a_realm_that_leads_nowhere(realm: str) -> None:
    with FakeRegistry() as fake, RegistryClient(fake.host, ROBOT, sleep=lambda s: None) as client:
        fake.fault = lambda r: Reply(401, {"WWW-Authenticate": f'Bearer realm="{realm}"'})
        with pytest.raises(RegistryError, match="token server"):
            client.head_blob("a/b", sha256(b""))


def test_a_location_that_is_no_url(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    path, data = blob(tmp_path, 10)
    fake.fault = lambda r: Reply(202, {"Location": "http://a:port/x"})
    with pytest.raises(RegistryError, match="no URL"):
        send(client, path, data)


# reaching it


def test_nothing_listens() -> None:
    with (
        RegistryClient("127.0.0.1:1", ANONYMOUS) as client,
        pytest.raises(RegistryError, match=r"127\.0\.0\.1:1: it refuses connections"),
    ):
        client.ping()


def test_an_unknown_name() -> None:
    with (
        RegistryClient("registry.invalid", ANONYMOUS) as client,
        pytest.raises(RegistryError, match=r"cannot reach registry\.invalid"),
    ):
        client.ping()


def test_no_plain_http_to_other_machines() -> None:
    """Plain http is used for registries on this machine only; nothing is sent to find out."""
    with RegistryClient("registry.example:5000", ANONYMOUS) as client:
        assert not client.plain_http


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("127.8.0.1:1", True),
        ("[::1]:5000", True),
        ("a.localhost", True),
        ("127.0.0.1.example", False),
        ("localhost.example", False),
        ("10.0.0.1:5000", False),
        ("[::2]:1", False),
    ],
)
def test_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


def test_offline_is_obeyed(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path, 1, offline=True)
    with pytest.raises(RegistryError, match="BUILDER_OFFLINE"):
        RegistryClient("ghcr.io", settings=settings)
    RegistryClient("127.0.0.1:5000", settings=settings)


def test_what_is_no_registry_is_said() -> None:
    with FakeRegistry() as fake, RegistryClient(fake.host, ANONYMOUS) as client:
        fake.fault = lambda r: Reply(404, body=b"<html>not here</html>")
        with pytest.raises(RegistryError, match="404"):
            client.ping()


def test_a_certificate_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(RegistryError, match="SSL_CERT_FILE names"):
        RegistryClient("ghcr.io")
