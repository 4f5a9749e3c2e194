"""Challenges and tokens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.model import OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor
from builder.registry.auth import parse_challenges
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS, Credentials
from tests.support.blobs import MIB, random_blob
from tests.support.fakeregistry import FakeRegistry, Reply, sha256

ROBOT = Credentials("robot$m558+site", "pa$$w0rd-s3cret", source="REGISTRY_USER and REGISTRY_PASSWORD")


def test_one_token_per_push(tmp_path: Path) -> None:
    """One token with pull and push serves a whole push; a mount also asks for the other repository."""
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT) as client,
    ):
        client.expect_push("a/b")
        assert client.head_manifest("a/b", "latest") is None
        path, data = random_blob(tmp_path, 2 * MIB)
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        client.put_manifest("a/b", "latest", b"{}", OCI_MANIFEST)
        assert fake.has("a/b", data) and len(fake.tokens) == 1
        assert fake.tokens[0].query == {"service": ["fake"], "scope": ["repository:a/b:pull,push"]}
        digest = fake.put("base/os", b"base")
        assert client.mount_blob("a/b", digest, "base/os")
        assert fake.tokens[1].query["scope"] == ["repository:a/b:pull,push", "repository:base/os:pull"]


def test_expired_token(tmp_path: Path) -> None:
    """A token that the registry does not accept any more is renewed, also during an upload."""
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT) as client,
    ):
        client.expect_push("a/b")
        client.head_blob("a/b", sha256(b""))
        fake.valid.clear()
        path, data = random_blob(tmp_path, 3 * MIB)
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        assert fake.has("a/b", data) and len(fake.tokens) == 2


def test_identity_token() -> None:
    """An identity token is sent in the body of a POST, never in a URL."""
    with FakeRegistry(identity_token="refresh-s3cret") as fake:
        with RegistryClient(fake.host, Credentials(identity_token="refresh-s3cret", source="file")) as client:
            assert client.head_blob("a/b", sha256(b"")) is None
        assert [r.method for r in fake.tokens] == ["POST"]
        assert "s3cret" not in fake.tokens[0].path and not fake.tokens[0].query


def test_wrong_password(caplog: pytest.LogCaptureFixture) -> None:
    """The message names the source of refused credentials, and never the password."""
    caplog.set_level(logging.DEBUG)
    with FakeRegistry(token_user=("someone", "else")) as fake:
        for credentials, message in (
            (ROBOT, "the credentials of REGISTRY_USER and REGISTRY_PASSWORD were used"),
            (ANONYMOUS, "no credentials for"),
        ):
            with (
                RegistryClient(fake.host, credentials) as client,
                pytest.raises(RegistryError, match="401") as caught,
            ):
                client.head_manifest("a/b", "latest")
            assert message in caught.value.hint
            assert "s3cret" not in f"{caught.value!r}{caught.value}{client!r}{caplog.text}"
            assert caught.value.__cause__ is None


def test_denied_push() -> None:
    """A refusal is shown with its code and message; the error has status, codes and host as values."""
    with FakeRegistry() as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.fault = lambda r: Reply(403, body=b'{"errors":[{"code":"DENIED","message":"no push for you"}]}')
        with pytest.raises(RegistryError, match=r"403 Forbidden \(DENIED: no push for you\)") as caught:
            client.put_manifest("a/b", "t", b"{}", OCI_MANIFEST)
    error = caught.value
    assert (error.status, error.codes, error.host) == (403, ("DENIED",), fake.host)


@pytest.mark.parametrize(
    "realm", ["http://a:port/x", "http://[", "/token", "ftp://x/token", "http://127.0.0.1:1/token"]
)
def test_unusable_realm(realm: str) -> None:
    """A token server whose address is not usable is an error."""
    with FakeRegistry() as fake, RegistryClient(fake.host, ROBOT, sleep=lambda s: None) as client:
        fake.fault = lambda r: Reply(401, {"WWW-Authenticate": f'Bearer realm="{realm}"'})
        with pytest.raises(RegistryError, match="token server"):
            client.head_blob("a/b", sha256(b""))


def test_challenges() -> None:
    """The challenges of WWW-Authenticate headers."""
    (bearer,) = parse_challenges(
        ['Bearer realm="https://auth.example/token",service="reg",scope="repository:a/b:pull,push"']
    )
    assert bearer.scheme == "bearer"
    assert bearer.params == {
        "realm": "https://auth.example/token",
        "service": "reg",
        "scope": "repository:a/b:pull,push",
    }
    both = parse_challenges(
        [r'Basic realm="a \"quoted\" name", Bearer realm="https://x/t?a=b", service=reg', "Negotiate"]
    )
    assert [c.scheme for c in both] == ["basic", "bearer", "negotiate"]
    assert both[0].params["realm"] == 'a "quoted" name' and both[1].params == {
        "realm": "https://x/t?a=b",
        "service": "reg",
    }
    assert parse_challenges([]) == []
