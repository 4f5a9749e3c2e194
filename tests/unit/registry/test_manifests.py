"""Manifests of a registry."""

from __future__ import annotations

import pytest

from builder.errors import HashMismatch, RegistryError
from builder.model import OCI_MANIFEST, Descriptor
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from tests.support.fakeregistry import FakeRegistry, Reply, sha256


def test_digest_is_verified(fake: FakeRegistry, client: RegistryClient) -> None:
    """A manifest is verified by its digest."""
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST), sha256(b"x"): (data, OCI_MANIFEST)}
    assert client.get_manifest("a/b", "t") == (data, OCI_MANIFEST, sha256(data))
    assert client.head_manifest("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))
    assert client.head_manifest("a/b", "none") is None
    with pytest.raises(HashMismatch):
        client.get_manifest("a/b", sha256(b"x"))


def test_head_without_digest(fake: FakeRegistry, client: RegistryClient) -> None:
    """Without Docker-Content-Digest the manifest is downloaded and hashed."""
    data = b'{"schemaVersion":2}'
    fake.manifests["a/b"] = {"t": (data, OCI_MANIFEST)}
    fake.fault = lambda r: Reply(200, {"Content-Type": OCI_MANIFEST}) if r.method == "HEAD" else None
    assert client.head_manifest("a/b", "t") == Descriptor(OCI_MANIFEST, sha256(data), len(data))


def test_not_a_registry() -> None:
    """A web server that is not a registry is an error."""
    with FakeRegistry() as fake, RegistryClient(fake.host, ANONYMOUS) as client:
        fake.fault = lambda r: Reply(404, body=b"<html>not here</html>")
        with pytest.raises(RegistryError, match="404"):
            client.ping()
