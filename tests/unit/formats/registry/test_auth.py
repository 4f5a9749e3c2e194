"""Challenges and tokens."""

from __future__ import annotations

import gzip
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import RegistryError
from builder.core.model import OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor
from builder.formats.registry import auth
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS, Credentials
from tests.support.blobs import MIB, random_blob
from tests.support.fakeregistry import FakeRegistry, Reply, Request, sha256
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
            (ANONYMOUS, "REGISTRY_PASSWORD, which are not sent to the registry of a base"),
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


REALM = "http://{host}/token"


@pytest.mark.parametrize(
    ("sentence", "challenges"),
    [
        ("no service", [f'Bearer realm="{REALM}"']),
        ("upper case", [f'BEARER REALM="{REALM}",SERVICE="fake"']),
        ("lower case", [f'bearer realm="{REALM}",service="fake"']),
        ("no quotes", [f"Bearer realm={REALM},service=fake"]),
        ("blanks", [f'Bearer  realm = "{REALM}" , service = "fake"']),
        ("quotes in quotes", [rf'Bearer realm="{REALM}",service="a \"b\", c"']),
        ("a realm with a query", [f'Bearer realm="{REALM}?x=1&service=y"']),
        ("an empty scope", [f'Bearer realm="{REALM}",scope=""']),
        ("another scheme before, in one header", [f'Negotiate, Bearer realm="{REALM}"']),
        ("another scheme before, with data", [f'NTLM TlRMTVNTUAA=, Bearer realm="{REALM}"']),
        ("another scheme before", ["Negotiate", 'Digest realm="d", qop="auth"', f'Bearer realm="{REALM}"']),
        ("Basic before", ['Basic realm="x"', f'Bearer realm="{REALM}"']),
        ("Basic before, in one header", [f'Basic realm="x", Bearer realm="{REALM}"']),
        ("a second Bearer", [f'Bearer realm="{REALM}"', 'Bearer realm="http://127.0.0.1:1/"']),
    ],
)
def test_bearer(sentence: str, challenges: list[str]) -> None:
    """A token is fetched however the registry asks for it."""
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake:

        def oddity(request: Request, status: int, headers: dict[str, Any]) -> int:
            if status == 401 and request.path != "/token":
                headers["WWW-Authenticate"] = [one.format(host=fake.host) for one in challenges]
            return status

        fake.oddity = oddity
        with RegistryClient(fake.host, ROBOT) as client:
            assert client.blobs.stored("a/b", EMPTY) is None, sentence
        assert "scope" in fake.tokens[0].query and fake.tokens[0].query.get("x") == (
            ["1"] if "query" in sentence else None
        )


@pytest.mark.parametrize(
    ("sentence", "challenges"),
    [
        ("no realm", ["Basic"]),
        ("a comma in the realm", ['Basic realm="a, b", charset="UTF-8"']),
        ("another scheme before", ['Negotiate, Basic realm="x"']),
        ("Bearer without a realm", ["Bearer", 'Basic realm="x"']),
        ("several schemes", ["Negotiate", "NTLM", 'Basic realm="x"']),
        ("no challenge, as crane 0.20", []),
        ("a scheme that nobody knows, as crane 0.20", ['Digest realm="d", nonce="n"']),
    ],
)
def test_basic(sentence: str, challenges: list[str]) -> None:
    """A password is sent however the registry asks for it."""
    with FakeRegistry() as fake:
        fake.fault = lambda r: (
            None if r.headers.get("authorization") else Reply(401, {"WWW-Authenticate": challenges})
        )
        with RegistryClient(fake.host, ROBOT) as client:
            assert client.blobs.stored("a/b", EMPTY) is None, sentence
        assert fake.requests[-1].headers["authorization"] == ROBOT.basic


@pytest.mark.parametrize("place", ["realm", "location"])
def test_user_in_an_address(tmp_path: Path, place: str) -> None:
    """A user in an address that the registry names does not replace the credentials (net/http of Go)."""
    path, data = random_blob(tmp_path, MIB)
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake:

        def oddity(request: Request, status: int, headers: dict[str, Any]) -> int:
            for name in ("WWW-Authenticate",) if place == "realm" else ("Location",):
                if name in headers:
                    address = re.sub(r"^/", f"http://{fake.host}/", headers[name])
                    headers[name] = address.replace("http://", "http://x:y@")
            return status

        fake.oddity = oddity
        with RegistryClient(fake.host, ROBOT) as client:
            client.blobs.upload_file("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        assert fake.has("a/b", data)


@pytest.mark.parametrize("more", [{}, *({"expires_in": v} for v in (0, -5, "300", "soon", 299.5, None, []))])
@pytest.mark.parametrize("name", ["token", "access_token"])
def test_token_answer(name: str, more: dict[str, Any]) -> None:
    """A token is used for a minute at least, whatever its answer says of its lifetime and age."""
    with FakeRegistry(token_user=("a", "b")) as fake, RegistryClient(fake.host, ROBOT) as client:
        body = json.dumps({name: "good", "issued_at": "yesterday", **more}).encode()
        fake.token_answer = Reply(200, body=body)
        fake.valid["good"] = {"repository:a/b:pull"}
        for _ in range(3):
            assert client.blobs.stored("a/b", EMPTY) is None
        assert len(fake.tokens) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_redirected_token_request(status: int, elsewhere: bool) -> None:
    """A token request is redirected; to another host without the password."""
    with FakeRegistry(token_user=("a", "b")) as fake, FakeRegistry() as other:
        place = f"http://{other.host}" if elsewhere else ""
        fake.token_answer = Reply(status, {"Location": f"{place}/v2/found"})
        found = Reply(200, body=b'{"token": "good"}')
        fake.fault = other.fault = lambda r: found if r.path == "/v2/found" else None
        fake.valid["good"] = {"repository:a/b:pull"}
        with RegistryClient(fake.host, ROBOT) as client:
            assert client.blobs.stored("a/b", EMPTY) is None
        (followed,) = [r for r in (*fake.requests, *other.requests) if r.path == "/v2/found"]
        assert followed.headers.get("authorization") == (None if elsewhere else ROBOT.basic)


def test_identity_token_is_not_redirected() -> None:
    """A request with an identity token in its body is not sent again to anywhere."""
    secret = Credentials(identity_token="refresh-s3cret", source="file")
    with FakeRegistry(identity_token="refresh-s3cret") as fake, FakeRegistry() as other:
        fake.token_answer = Reply(307, {"Location": f"http://{other.host}/token"})
        with (
            RegistryClient(fake.host, secret) as client,
            pytest.raises(RegistryError, match="refused: 307"),
        ):
            client.blobs.stored("a/b", EMPTY)
        assert not other.requests and not other.tokens


@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("challenge", ["Bearer", "Basic"])
def test_hidden_from_anonymous(status: int, challenge: str) -> None:
    """Where only /v2/ asks for credentials, as docker expects, it is asked once."""
    with FakeRegistry(token_user=(ROBOT.username, ROBOT.password)) as fake:

        def fault(request: Request) -> Reply | None:
            if request.headers.get("authorization"):
                return None
            if request.path != "/v2/":
                return Reply(status)
            return Reply(401, {"WWW-Authenticate": f'{challenge} realm="http://{fake.host}/token"'})

        fake.fault, fake.auth = fault, challenge == "Bearer"
        with RegistryClient(fake.host, ROBOT) as client:
            client.manifests.put("a/b", "t", b"{}", OCI_MANIFEST)
            assert client.blobs.stored("a/b", EMPTY) is None
        assert fake.count("GET", "^/v2/$") == 2, "one finds out that the registry has no TLS"
    with FakeRegistry() as fake, RegistryClient(fake.host, ROBOT) as client:
        for _ in range(3):
            assert client.blobs.stored("a/b", EMPTY) is None
        assert fake.count("GET", "^/v2/$") == 2, "a registry that asks for nothing"


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
def test_asked_in_the_middle_of_an_upload(tmp_path: Path, method: str) -> None:
    """Requests of an upload that are refused at first are sent again with credentials, whole."""
    path, data = random_blob(tmp_path, 3 * MIB)
    with FakeRegistry() as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.put_limit = MIB if method == "PATCH" else None
        fake.fault = lambda r: (
            Reply(401, {"WWW-Authenticate": "Basic"})
            if r.method == method and not r.headers.get("authorization")
            else None
        )
        client.blobs.upload_file("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), len(data)), path)
        assert fake.has("a/b", data)


def test_large_token_answer() -> None:
    """A token answer is read up to a limit, which counts what it is decompressed to."""
    bomb = gzip.compress(bytes(4 * MIB))
    with FakeRegistry(token_user=("a", "b")) as fake, RegistryClient(fake.host, ROBOT) as client:
        fake.token_answer = Reply(200, {"Content-Encoding": "gzip"}, bomb)
        with pytest.raises(RegistryError, match="more than 1 MiB"):
            client.blobs.stored("a/b", EMPTY)
        fake.token_answer = Reply(200, body=b" " * (auth.MAX_ANSWER + 1))
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
                    with pytest.raises(RegistryError, match="cannot reach attacker.invalid"):
                        client.blobs.stored("a/b", EMPTY)
            assert len(warnings.messages) == expected
            for message in warnings.messages:
                assert fake.host in message and "attacker.invalid" in message and "s3cret" not in message
