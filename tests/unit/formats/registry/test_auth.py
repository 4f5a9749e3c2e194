"""Challenges and tokens."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest

from builder.core.errors import RegistryError
from builder.core.model import OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor
from builder.formats.registry import transport
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS, Credentials
from tests.support.blobs import MIB, random_blob
from tests.support.fakeregistry import FakeRegistry, Reply, sha256
from tests.support.reporters import Warnings

EMPTY = Descriptor(OCI_LAYER_GZIP, sha256(b""), 0)
ROBOT = Credentials("robot$m558+site", "pa$$w0rd-s3cret", source="REGISTRY_USER and REGISTRY_PASSWORD")


def test_one_token_per_push(tmp_path: Path) -> None:
    """One token with pull and push serves a whole push; a mount also asks for the other repository."""
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT) as client,
    ):
        client.expect_push("a/b")
        assert client.manifests.head("a/b", "latest") is None
        path, data = random_blob(tmp_path, 2 * MIB)
        client.blobs.upload_file("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        client.manifests.put("a/b", "latest", b"{}", OCI_MANIFEST)
        assert fake.has("a/b", data) and len(fake.tokens) == 1
        assert fake.tokens[0].query == {"service": ["fake"], "scope": ["repository:a/b:pull,push"]}
        digest = fake.put("base/os", b"base")
        assert client.blobs.mount("a/b", digest, "base/os")
        assert fake.tokens[1].query["scope"] == ["repository:a/b:pull,push", "repository:base/os:pull"]


def test_expired_token(tmp_path: Path) -> None:
    """A token that the registry does not accept any more is renewed, also during an upload."""
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT) as client,
    ):
        client.expect_push("a/b")
        client.blobs.stored("a/b", EMPTY)
        fake.valid.clear()
        path, data = random_blob(tmp_path, 3 * MIB)
        client.blobs.upload_file("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        assert fake.has("a/b", data) and len(fake.tokens) == 2


def test_identity_token() -> None:
    """An identity token is sent in the body of a POST, never in a URL."""
    with FakeRegistry(identity_token="refresh-s3cret") as fake:
        with RegistryClient(fake.host, Credentials(identity_token="refresh-s3cret", source="file")) as client:
            assert client.blobs.stored("a/b", EMPTY) is None
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
                client.manifests.head("a/b", "latest")
            assert message in caught.value.hint
            assert "s3cret" not in f"{caught.value!r}{caught.value}{client!r}{caplog.text}"
            assert caught.value.__cause__ is None


def test_denied_push() -> None:
    """A refusal is shown with its code and message; the error has status, codes and host as values."""
    with FakeRegistry() as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.fault = lambda r: Reply(403, body=b'{"errors":[{"code":"DENIED","message":"no push for you"}]}')
        with pytest.raises(RegistryError, match=r"403 Forbidden \(DENIED: no push for you\)") as caught:
            client.manifests.put("a/b", "t", b"{}", OCI_MANIFEST)
    error = caught.value
    assert (error.status, error.codes, error.host) == (403, ("DENIED",), fake.host)


def test_large_token_answer() -> None:
    """A token answer is read up to a limit, and never decompressed."""
    bomb = gzip.compress(bytes(4 * MIB))
    with FakeRegistry(token_user=("a", "b")) as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.token_answer = Reply(200, {"Content-Encoding": "gzip"}, bomb)
        with pytest.raises(RegistryError, match="answered without a token"):
            client.blobs.stored("a/b", EMPTY)
        fake.token_answer = Reply(200, body=b" " * (transport.MAX_TOKEN_ANSWER + 1))
        with pytest.raises(RegistryError, match="more than 1 MiB"):
            client.blobs.stored("a/b", EMPTY)


def test_password_to_another_domain() -> None:
    """The first password that goes to another domain is reported, with both names; no password, no report."""
    realm = 'Bearer realm="https://attacker.invalid/token",service="x"'
    for credentials, expected in ((ROBOT, 1), (ANONYMOUS, 0)):
        warnings = Warnings()
        with FakeRegistry() as fake:
            fake.fault = lambda r: Reply(401, {"WWW-Authenticate": realm})
            with RegistryClient(fake.host, credentials, reporter=warnings, sleep=lambda s: None) as client:
                for _ in range(2):
                    with pytest.raises(RegistryError, match="token server"):
                        client.blobs.stored("a/b", EMPTY)
            assert len(warnings.messages) == expected
            for message in warnings.messages:
                assert fake.host in message and "attacker.invalid" in message and "s3cret" not in message
