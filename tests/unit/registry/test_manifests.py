"""Manifests of a registry."""

from __future__ import annotations

import hashlib
import json

import pytest

from builder.errors import HashMismatch, ImageError, RegistryError
from builder.model import OCI_INDEX, OCI_MANIFEST, Descriptor
from builder.registry import manifests
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from builder.registry.errors import ArtifactRefused
from builder.registry.manifests import ANY, TagMove
from tests.support.fakeregistry import FakeRegistry, Reply, Request, sha256

MANIFEST = b'{"schemaVersion":2}'


def test_digest_is_verified(fake: FakeRegistry, client: RegistryClient) -> None:
    """A manifest is verified by its digest."""
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST), sha256(b"x"): (data, OCI_MANIFEST)}
    assert client.get_manifest("a/b", "t") == (data, OCI_MANIFEST, sha256(data))
    assert client.head_manifest("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))
    assert client.head_manifest("a/b", "none") is None
    with pytest.raises(HashMismatch):
        client.get_manifest("a/b", sha256(b"x"))


@pytest.mark.parametrize("algorithm", ["sha512", "sha384", "blake3"])
def test_digest_of_another_algorithm(fake: FakeRegistry, client: RegistryClient, algorithm: str) -> None:
    """A registry may state the digest by another algorithm: a known one is verified too."""
    data = b'{"schemaVersion":2}'
    known = hasattr(hashlib, algorithm)
    value = hashlib.new(algorithm, data).hexdigest() if known else "0" * 64
    headers = {"Content-Type": OCI_MANIFEST, "Docker-Content-Digest": f"{algorithm}:{value}"}
    fake.fault = lambda r: Reply(201 if r.method == "PUT" else 200, headers, data)
    assert client.get_manifest("a/b", "t") == (data, OCI_MANIFEST, sha256(data))
    assert client.head_manifest("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))
    assert client.put_manifest("a/b", "t", data, OCI_MANIFEST) == sha256(data)
    if known:
        headers["Docker-Content-Digest"] = f"{algorithm}:{'0' * len(value)}"
        with pytest.raises(HashMismatch):
            client.get_manifest("a/b", "t")


def test_refused(fake: FakeRegistry, client: RegistryClient) -> None:
    fake.fault = lambda r: Reply(401)
    with pytest.raises(RegistryError, match=r"did not return the manifest of \S+/a/b:t: 401"):
        client.head_manifest("a/b", "t")


@pytest.mark.parametrize("body", [b"[" * 200_000, b"[]", b'{"tags": 7}', b'{"tags"'])
def test_odd_tags(fake: FakeRegistry, client: RegistryClient, body: bytes) -> None:
    """A list of tags of the wrong shape is one error."""
    fake.fault = lambda r: Reply(200, body=body)
    with pytest.raises(RegistryError, match="did not answer with a list of tags"):
        client.list_tags("a/b")


@pytest.mark.parametrize("bound", ["MAX_PAGES", "MAX_LIST"])
def test_endless_list(
    fake: FakeRegistry, client: RegistryClient, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A list that does not end is an error, not a shorter list."""
    monkeypatch.setattr(manifests, bound, 20)
    fake.fault = lambda r: Reply(200, {"Link": f'<{r.path}>; rel="next"'}, b'{"tags": ["a"]}')
    with pytest.raises(RegistryError, match=r"/v2/a/b/tags/list does not end"):
        client.list_tags("a/b")
    assert len(fake.requests) == (20 if bound == "MAX_PAGES" else 2)


def test_ambiguous_document(fake: FakeRegistry, client: RegistryClient) -> None:
    """A document that is a manifest for one reader and an index for another is refused (CVE-2021-41190)."""
    both = b'{"schemaVersion":2,"config":{},"layers":[],"manifests":[]}'
    fake.manifests["a/b"] = {"t": (both, OCI_MANIFEST), "i": (both, OCI_INDEX)}
    for tag in ("t", "i"):
        with pytest.raises(ImageError, match="can be read as a manifest and as an index"):
            client.get_manifest("a/b", tag)


def test_head_without_digest(fake: FakeRegistry, client: RegistryClient) -> None:
    """Without Docker-Content-Digest the manifest is downloaded and hashed."""
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST)}
    fake.fault = lambda r: Reply(200, {"Content-Type": OCI_MANIFEST}) if r.method == "HEAD" else None
    assert client.head_manifest("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))


OLD, NEW, OTHER = b'{"old":1}', b'{"new":1}', b'{"other":1}'


def test_tag_is_moved_as_expected(fake: FakeRegistry, client: RegistryClient) -> None:
    """A tag moves when it names what the caller expects, and is read back."""
    moved = client.move_tag("a/b", "t", OLD, OCI_MANIFEST, expected=None)
    assert moved == TagMove(None, sha256(OLD), written=True)
    moved = client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=sha256(OLD))
    assert moved == TagMove(sha256(OLD), sha256(NEW), written=True)
    puts = [r.headers for r in fake.requests if r.method == "PUT"]
    assert puts[0]["if-none-match"] == "*" and puts[1]["if-match"] == f'"{sha256(OLD)}"'


def test_tag_of_another_client_stays(fake: FakeRegistry, client: RegistryClient) -> None:
    """A tag that is not as expected is not written; with ANY it is."""
    fake.manifests["a/b"] = {"t": (OTHER, OCI_MANIFEST)}
    moved = client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=sha256(OLD))
    assert moved == TagMove(sha256(OTHER), sha256(OTHER), written=False)
    assert client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=None).now == sha256(OTHER)
    assert not fake.count("PUT")
    moved = client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=ANY)
    assert moved == TagMove(sha256(OTHER), sha256(NEW), written=True)
    again = client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=sha256(OLD))
    assert again == TagMove(sha256(NEW), sha256(NEW), written=False)


@pytest.mark.parametrize("honours", [True, False])
def test_race_for_a_tag(fake: FakeRegistry, client: RegistryClient, honours: bool) -> None:
    """Another client moves the tag between the look and the write.

    A registry that honours the condition keeps the other's manifest. Any other one is read back.
    """
    fake.honours_conditions = honours

    def race(request: Request) -> None:
        if request.method == "PUT":
            fake.manifests["a/b"] = {"t": (OTHER, OCI_MANIFEST)}

    fake.fault = race
    moved = client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=None)
    assert moved == TagMove(None, sha256(OTHER if honours else NEW), written=not honours)


def test_tag_overwritten_after_the_write(fake: FakeRegistry, client: RegistryClient) -> None:
    """The digest that is returned is the one that the registry reports after the write."""

    def overwrite(request: Request) -> None:
        if request.method == "HEAD" and "t" in fake.manifests.get("a/b", {}):
            fake.manifests["a/b"]["t"] = (OTHER, OCI_MANIFEST)

    fake.fault = overwrite
    moved = client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=None)
    assert moved == TagMove(None, sha256(OTHER), written=True)


def test_stale_cache_is_read_again(fake: FakeRegistry, client: RegistryClient, waits: list[float]) -> None:
    """A cache before the registry may answer once more with what the tag named before."""
    heads = []

    def stale(request: Request) -> Reply | None:
        heads.extend([1] if request.method == "HEAD" else [])
        return Reply(404) if request.method == "HEAD" and len(heads) == 2 else None

    fake.fault = stale
    assert client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=None).now == sha256(NEW)
    assert len(heads) == 3 and len(waits) == 1


def test_immutable_tag(fake: FakeRegistry, client: RegistryClient) -> None:
    """Harbor answers 412 when its owner made a tag immutable: that is an error, not a race."""
    fake.manifests["a/b"] = {"t": (OLD, OCI_MANIFEST)}
    fake.fault = lambda r: (
        Reply(412, body=b'{"errors":[{"code":"PRECONDITION"}]}') if r.method == "PUT" else None
    )
    for expected in (sha256(OLD), ANY):
        with pytest.raises(RegistryError, match="PRECONDITION"):
            client.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=expected)


def refused(code: str) -> Reply:
    return Reply(400, body=json.dumps({"errors": [{"code": code, "message": ""}]}).encode())


def test_same_manifest_at_once(fake: FakeRegistry, client: RegistryClient, waits: list[float]) -> None:
    """A manifest that the registry finds damaged while another client stores it is sent again."""
    fake.fail_once("PUT", "/manifests/", refused("DIGEST_INVALID"), times=2)
    digest = client.put_manifest("a/b", sha256(MANIFEST), MANIFEST, OCI_MANIFEST)
    assert digest in fake.manifests["a/b"] and len(waits) == 2
    fake.fail_once("PUT", "/manifests/", refused("DIGEST_INVALID"), times=9)
    with pytest.raises(RegistryError, match="DIGEST_INVALID") as e:
        client.put_referrer("a/b", MANIFEST, OCI_MANIFEST)
    assert not isinstance(e.value, ArtifactRefused), "not a registry for images only"
    assert fake.count("PUT") == 6
    fake.fail_once("PUT", "/manifests/", refused("MANIFEST_INVALID"), times=9)
    with pytest.raises(RegistryError, match="MANIFEST_INVALID"):
        client.put_manifest("a/b", "latest", MANIFEST, OCI_MANIFEST)
    assert fake.count("PUT") == 7, "another refusal is final"


def test_not_a_registry() -> None:
    """A web server that is not a registry is an error."""
    with FakeRegistry() as fake, RegistryClient(fake.host, ANONYMOUS) as client:
        fake.fault = lambda r: Reply(404, body=b"<html>not here</html>")
        with pytest.raises(RegistryError, match="404"):
            client.ping()


def test_tag_moved_before_a_repeated_write(fake: FakeRegistry, client: RegistryClient) -> None:
    """A refused write of a tag is repeated only if the tag is still as expected."""
    other = b'{"schemaVersion": 2}'

    def fault(request: Request) -> Reply | None:
        if request.method != "PUT":
            return None
        fake.manifests["a/b"] = {"t": (other, OCI_MANIFEST)}
        return refused("DIGEST_INVALID")

    fake.fault = fault
    moved = client.move_tag("a/b", "t", MANIFEST, OCI_MANIFEST, expected=None)
    assert (moved.now, moved.written, fake.count("PUT")) == (sha256(other), False, 1)
