"""Manifests of a registry."""

from __future__ import annotations

from typing import Any

import pytest

from builder.core.errors import HashMismatch, ImageError, RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Descriptor
from builder.formats.registry import manifests, transport
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.formats.registry.manifests import ANY, TagMove
from tests.support.fakeregistry import FakeRegistry, Reply, Request, sha256

OLD, NEW, OTHER = b'{"old":1}', b'{"new":1}', b'{"other":1}'


def test_digest_is_verified(fake: FakeRegistry, client: RegistryClient) -> None:
    """A manifest is verified by its digest."""
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST), sha256(b"x"): (data, OCI_MANIFEST)}
    described = Descriptor(OCI_MANIFEST, sha256(data), len(data))
    assert client.manifests.get("a/b", "t") == (data, described)
    assert client.manifests.head("a/b", "t") == described
    assert client.manifests.head("a/b", "none") is None
    with pytest.raises(HashMismatch):
        client.manifests.get("a/b", sha256(b"x"))


def test_other_digest(fake: FakeRegistry, client: RegistryClient) -> None:
    """A registry that answers a digest with another one: what was asked for counts."""
    fake.fault = lambda r: Reply(200, {"Docker-Content-Digest": sha256(b"y")}, b"y")
    with pytest.raises(HashMismatch):
        client.manifests.head("a/b", sha256(b"x"))


def test_refused(fake: FakeRegistry, client: RegistryClient) -> None:
    fake.fault = lambda r: Reply(401)
    with pytest.raises(RegistryError, match=r"did not return \S+/a/b:t: 401"):
        client.manifests.head("a/b", "t")


@pytest.mark.parametrize(
    ("status", "changed"),
    [
        (405, {}),
        (404, {}),
        (403, {}),
        (401, {}),
        (400, {}),
        (500, {}),
        (501, {}),
        (200, {"Docker-Content-Digest": None}),
        (200, {"Docker-Content-Digest": "sha256:nonsense"}),
        (200, {"Content-Length": None}),
        (200, {"Content-Type": None}),
        (200, {"Content-Type": "application/json"}),
        (200, {"Content-Type": "application/octet-stream", "Docker-Content-Digest": None}),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else " ".join(value),
)
def test_no_head(
    fake: FakeRegistry, client: RegistryClient, status: int, changed: dict[str, str | None]
) -> None:
    """GET decides what a registry does not answer to HEAD, and then HEAD is not sent any more."""

    def oddity(request: Request, usual: int, headers: dict[str, Any]) -> int:
        if request.method != "HEAD" or usual != 200:
            return status if request.method == "HEAD" and status != 200 else usual
        headers.update(changed)
        for name in [name for name, value in headers.items() if value is None]:
            del headers[name]
        return status

    fake.oddity = oddity
    fake.manifests["a/b"] = {"t": (OLD, OCI_MANIFEST)}
    assert client.manifests.head("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(OLD), len(OLD))
    asked = fake.count("HEAD")
    assert client.manifests.head("a/b", "none") is None
    moved = client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=sha256(OLD))
    assert moved == TagMove(sha256(OLD), sha256(NEW), written=True), "nobody else moved the tag"
    assert fake.count("HEAD") == asked == (transport.TRIES if status == 500 else 1)


def test_absent_is_asked_for_twice_until_head_is_known(fake: FakeRegistry, client: RegistryClient) -> None:
    """HEAD's 404 is confirmed by GET until HEAD has described a manifest of this registry."""
    assert client.manifests.head("a/b", "none") is None
    assert (fake.count("HEAD"), fake.count("GET")) == (1, 1)
    fake.manifests["a/b"] = {"t": (OLD, OCI_MANIFEST)}
    assert client.manifests.head("a/b", "t") is not None
    for tag in ("none", "others"):
        assert client.manifests.head("a/b", tag) is None
    assert (fake.count("HEAD"), fake.count("GET")) == (4, 1)


def test_busy_registry_is_not_asked_twice(fake: FakeRegistry, client: RegistryClient) -> None:
    """A HEAD that is refused for the load of the registry is not followed by a GET."""
    fake.fault = lambda r: Reply(429)
    with pytest.raises(RegistryError, match="429"):
        client.manifests.head("a/b", "t")
    assert fake.count("GET") == 0


@pytest.mark.parametrize("status", [200, 202, 204])
def test_other_success(fake: FakeRegistry, client: RegistryClient, status: int) -> None:
    """A manifest is stored whatever status says so."""
    fake.oddity = lambda r, usual, headers: status if r.method == "PUT" else usual
    assert client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST).now == sha256(NEW)


@pytest.mark.parametrize("bound", ["MAX_PAGES", "MAX_LIST"])
def test_endless_list(
    fake: FakeRegistry, client: RegistryClient, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A list that does not end is an error, not a shorter list."""
    monkeypatch.setattr(manifests, bound, 20)
    link = {"Content-Type": OCI_INDEX}
    body = b'{"schemaVersion":2,"manifests":[]}'
    fake.fault = lambda r: Reply(200, {**link, "Link": f'<{r.path}>; rel="next"'}, body)
    with pytest.raises(RegistryError, match=r"/v2/a/b/referrers/\S+ does not end"):
        client.manifests.get_referrers("a/b", "sha256:" + "1" * 64)
    assert len(fake.requests) == (20 if bound == "MAX_PAGES" else 1)


def test_ambiguous_document(fake: FakeRegistry, client: RegistryClient) -> None:
    """A document that is a manifest for one reader and an index for another is refused (CVE-2021-41190)."""
    both = b'{"schemaVersion":2,"config":{},"layers":[],"manifests":[]}'
    fake.manifests["a/b"] = {"t": (both, OCI_MANIFEST), "i": (both, OCI_INDEX)}
    for tag in ("t", "i"):
        with pytest.raises(ImageError, match="can be read as a manifest and as an index"):
            client.manifests.get("a/b", tag)


def test_tag_is_moved_as_expected(fake: FakeRegistry, client: RegistryClient) -> None:
    """A tag moves when it names what the caller expects, and is read back."""
    moved = client.manifests.move_tag("a/b", "t", OLD, OCI_MANIFEST, expected=None)
    assert moved == TagMove(None, sha256(OLD), written=True)
    moved = client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=sha256(OLD))
    assert moved == TagMove(sha256(OLD), sha256(NEW), written=True)


def test_tag_of_another_client_stays(fake: FakeRegistry, client: RegistryClient) -> None:
    """A tag that is not as expected is not written; with ANY it is."""
    fake.manifests["a/b"] = {"t": (OTHER, OCI_MANIFEST)}
    moved = client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=sha256(OLD))
    assert moved == TagMove(sha256(OTHER), sha256(OTHER), written=False)
    assert client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=None).now == sha256(OTHER)
    assert not fake.count("PUT")
    moved = client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=ANY)
    assert moved == TagMove(sha256(OTHER), sha256(NEW), written=True)
    again = client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=sha256(OLD))
    assert again == TagMove(sha256(NEW), sha256(NEW), written=False)


def test_tag_overwritten_after_the_write(fake: FakeRegistry, client: RegistryClient) -> None:
    """The digest that is returned is the one that the registry reports after the write."""

    def overwrite(request: Request) -> None:
        if request.method == "HEAD" and "t" in fake.manifests.get("a/b", {}):
            fake.manifests["a/b"]["t"] = (OTHER, OCI_MANIFEST)

    fake.fault = overwrite
    moved = client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=None)
    assert moved == TagMove(None, sha256(OTHER), written=True)


def test_immutable_tag(fake: FakeRegistry, client: RegistryClient) -> None:
    """Harbor answers 412 when its owner made a tag immutable: that is an error, not a race."""
    fake.manifests["a/b"] = {"t": (OLD, OCI_MANIFEST)}
    fake.fault = lambda r: (
        Reply(412, body=b'{"errors":[{"code":"PRECONDITION"}]}') if r.method == "PUT" else None
    )
    for expected in (sha256(OLD), ANY):
        with pytest.raises(RegistryError, match="PRECONDITION") as caught:
            client.manifests.move_tag("a/b", "t", NEW, OCI_MANIFEST, expected=expected)
        assert "does not allow this" in caught.value.hint, "what answers so is a registry"


def test_not_a_registry() -> None:
    """A web server that is not a registry is an error."""
    with FakeRegistry() as fake, RegistryClient(fake.host, ANONYMOUS) as client:
        fake.fault = lambda r: Reply(404, body=b"<html>not here</html>")
        with pytest.raises(RegistryError, match="404"):
            client.manifests.get("a/b", "t")
