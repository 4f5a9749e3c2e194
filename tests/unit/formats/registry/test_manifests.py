"""Manifests of a registry."""

from __future__ import annotations

import pytest

from builder.core.errors import HashMismatch, ImageError, RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Descriptor
from builder.formats.registry import manifests
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.formats.registry.manifests import ANY, TagMove
from tests.support.fakeregistry import FakeRegistry, Reply, Request, sha256


def test_digest_is_verified(fake: FakeRegistry, client: RegistryClient) -> None:
    """A manifest is verified by its digest."""
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST), sha256(b"x"): (data, OCI_MANIFEST)}
    assert client.manifests.get("a/b", "t") == (data, OCI_MANIFEST, sha256(data))
    assert client.manifests.head("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))
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
    with pytest.raises(RegistryError, match=r"did not return the manifest of \S+/a/b:t: 401"):
        client.manifests.head("a/b", "t")


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


OLD, NEW, OTHER = b'{"old":1}', b'{"new":1}', b'{"other":1}'


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
