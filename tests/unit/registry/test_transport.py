"""Requests to a registry: retries, redirects, schemes."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.registry import transport
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS, Credentials
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.blobs import described, random_blob
from tests.support.blobs import upload as send
from tests.support.fakeregistry import FakeRegistry, Reply, sha256

ROBOT = Credentials("robot$m558+site", "pa$$w0rd-s3cret", source="REGISTRY_USER and REGISTRY_PASSWORD")


def test_waits_grow_and_end(fake: FakeRegistry, client: RegistryClient, waits: list[float]) -> None:
    """Without Retry-After the waits grow, and the sixth attempt is the last one."""
    fake.fault = lambda request: Reply(503, body=b"<html>busy</html>")
    with pytest.raises(RegistryError, match="503") as caught:
        client.head_manifest("a/b", "latest")
    assert "fault of the registry" in caught.value.hint
    assert len(waits) == transport.TRIES - 1 and all(b > a for a, b in zip(waits, waits[1:], strict=False))


def test_redirect_without_credentials(store: Store) -> None:
    """Credentials are not sent to the host that the registry redirects to."""
    data = b"layer" * 1000
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake, FakeRegistry() as bucket:
        fake.put("a/b", data)
        bucket.put("a/b", data)
        fake.redirect_blobs_to = f"http://{bucket.host}"
        with RegistryClient(fake.host, ROBOT) as client:
            assert client.get_blob_to("a/b", described(data), store).read_bytes() == data
        assert any("authorization" in r.headers for r in fake.requests)
        assert bucket.requests and not any("authorization" in r.headers for r in bucket.requests)


def test_redirect_loop() -> None:
    """A loop of redirects is an error."""
    with FakeRegistry() as fake, RegistryClient(fake.host, ANONYMOUS) as client:
        fake.put("a/b", b"x")
        fake.redirect_blobs_to = f"http://{fake.host}"
        with pytest.raises(RegistryError, match="does not follow"):
            client.head_blob("a/b", sha256(b"x"))


def test_location_is_no_url(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A Location header that is not a URL is an error."""
    path, data = random_blob(tmp_path, 10)
    fake.fault = lambda r: Reply(202, {"Location": "http://a:port/x"})
    with pytest.raises(RegistryError, match="not a URL"):
        send(client, path, data)


def test_connection_refused() -> None:
    """A port where nothing listens is an error at once."""
    with (
        RegistryClient("127.0.0.1:1", ANONYMOUS) as client,
        pytest.raises(RegistryError, match=r"127\.0\.0\.1:1: it refuses connections"),
    ):
        client.ping()


def test_unknown_host() -> None:
    """A host name that does not exist is an error at once."""
    with (
        RegistryClient("registry.invalid", ANONYMOUS) as client,
        pytest.raises(RegistryError, match=r"cannot reach registry\.invalid"),
    ):
        client.ping()


def test_no_plain_http_to_other_machines() -> None:
    """Plain http is used for registries on this machine only; nothing is sent to find out."""
    with RegistryClient("registry.example:5000", ANONYMOUS) as client:
        assert not client.plain_http


def test_offline(tmp_path: Path) -> None:
    """BUILDER_OFFLINE forbids registries on other machines only."""
    settings = Settings(tmp_path, tmp_path, 1, offline=True)
    with pytest.raises(RegistryError, match="BUILDER_OFFLINE"):
        RegistryClient("ghcr.io", settings=settings)
    RegistryClient("127.0.0.1:5000", settings=settings)
