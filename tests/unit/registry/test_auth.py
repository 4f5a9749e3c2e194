"""Challenges and tokens."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.model import OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor
from builder.registry import auth, transport
from builder.registry.auth import parse_challenges, same_owner
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS, Credentials
from tests.support.blobs import MIB, random_blob
from tests.support.fakeregistry import FakeRegistry, Reply, Request, sha256
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.reporters import Warnings

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


def test_tokens_that_expire_in_mid_push(tmp_path: Path) -> None:
    """A push whose token is refused at each write renews it each time, and nothing is lost."""
    image = make_test_image([make_layer(tmp_path, "one", 4 * MIB)])
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT, sleep=lambda s: None) as client,
    ):
        fake.put_limit = MIB
        refused: set[tuple[str, str]] = set()

        def expire(request: Request) -> None:
            """Every token is refused once for each request that writes."""
            write = (request.method, request.path + request.headers.get("content-range", ""))
            if request.method != "HEAD" and write not in refused:
                refused.add(write)
                fake.valid.clear()

        fake.fault = expire
        push_tagged(image, client, "a/b", ["latest"])
        assert all(fake.has("a/b", layer.path.read_bytes()) for layer in image.layers if layer.path)
        assert fake.manifests["a/b"]["latest"][0] == image.manifest
        assert fake.count("PATCH") >= 8 and len(fake.tokens) > 10


def test_token_is_renewed_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is renewed when three quarters of its lifetime (here 300 s) are over."""
    clock = [1000.0]
    monkeypatch.setattr(auth.time, "monotonic", lambda: clock[0])
    with (
        FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake,
        RegistryClient(fake.host, ROBOT) as client,
    ):
        for now, tokens in ((1000, 1), (1210, 1), (1221, 2), (1300, 2)):
            clock[0] = now
            client.head_blob("a/b", sha256(b""))
            assert len(fake.tokens) == tokens


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


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"token": "\xc3\xa9"}',
        b'{"token": "a\\nb: c"}',
        b"[]",
        b'{"token": "a", "expires_in": "x"}',
    ],
    ids=["deep", "not ASCII", "a line break", "a list", "no number"],
)
def test_odd_token(body: bytes) -> None:
    """A token answer of the wrong shape is one error."""
    with FakeRegistry(token_user=("a", "b")) as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.token_answer = Reply(200, body=body)
        with pytest.raises(RegistryError, match="answered without a token"):
            client.head_blob("a/b", sha256(b""))


def test_large_token_answer() -> None:
    """A token answer is read up to a limit, and never decompressed."""
    bomb = gzip.compress(bytes(4 * MIB))
    with FakeRegistry(token_user=("a", "b")) as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.token_answer = Reply(200, {"Content-Encoding": "gzip"}, bomb)
        with pytest.raises(RegistryError, match="answered without a token"):
            client.head_blob("a/b", sha256(b""))
        fake.token_answer = Reply(200, body=b" " * (transport.MAX_TOKEN_ANSWER + 1))
        with pytest.raises(RegistryError, match="more than 1 MiB"):
            client.head_blob("a/b", sha256(b""))


@pytest.mark.parametrize(
    ("registry", "realm", "same"),
    [
        ("docker.io", "auth.docker.io", True),
        ("registry.hub.docker.com", "auth.docker.io", True),
        ("ghcr.io", "ghcr.io", True),
        ("quay.io", "quay.io", True),
        ("registry.gitlab.com", "gitlab.com", True),
        ("registry.example.org:5000", "Gitlab.example.org", True),
        ("registry.nersc.gov", "registry.nersc.gov", True),
        ("registry.a.ac.uk", "auth.a.ac.uk", True),
        ("registry.a.ac.uk", "auth.b.ac.uk", False),
        ("registry.example.org", "attacker.example", False),
        ("10.0.0.1:5000", "10.0.0.1", True),
        ("10.0.0.1", "10.1.0.1", False),
        ("localhost:5000", "127.0.0.1", True),
        ("localhost:5000", "::1", True),
        ("localhost:5000", "attacker.example", False),
        ("[::2]:5000", "::2", True),
    ],
)
def test_owner_of_a_token_server(registry: str, realm: str, same: bool) -> None:
    """Which token servers belong to a registry, by their names."""
    assert same_owner(registry, realm) is same


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
                        client.head_blob("a/b", sha256(b""))
            assert len(warnings.messages) == expected
            for message in warnings.messages:
                assert fake.host in message and "attacker.invalid" in message and "s3cret" not in message


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
