"""Downloads and mounts of blobs."""

from __future__ import annotations

import hashlib
import random

import pytest

from builder.errors import HashMismatch, RegistryError
from builder.registry.client import RegistryClient
from builder.registry.transport import TRIES
from builder.store.blobs import Store
from tests.support.blobs import MIB, described
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, Request, sha256


def test_failed_mount(fake: FakeRegistry, client: RegistryClient) -> None:
    """A mount that fails leaves no upload session behind, and is no error."""
    digest = fake.put("other/repo", b"layer")
    assert client.mount_blob("a/b", digest, "other/repo") and fake.has("a/b", b"layer")
    assert not client.mount_blob("a/b", sha256(b"unknown"), "other/repo")
    assert not fake.uploads, "the upload that was begun instead is cancelled"
    fake.fail_once("POST", "/uploads/", Reply(403))
    assert not client.mount_blob("a/b", digest, "secret/repo")


def test_broken_note_of_a_blob(fake: FakeRegistry, client: RegistryClient) -> None:
    """A blob that the registry cannot report counts as missing for a push: the upload says what is wrong."""
    digest = fake.put("a/b", b"layer")
    fake.fail_once("HEAD", digest, Reply(500), times=2 * TRIES)
    assert not client.has_blob("a/b", described(b"layer"))
    with pytest.raises(RegistryError, match=f"did not report whether .*a/b has {digest}: 500"):
        client.head_blob("a/b", digest)
    assert client.has_blob("a/b", described(b"layer"))


def test_resume_after_a_cut(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    """After a broken connection only the rest of a blob is requested, and from then on nothing."""
    data = random.Random(1).randbytes(6 * MIB)
    fake.put("a/b", data)
    fake.fail_once("GET", "/blobs/", Cut(after=4 * MIB))
    reported: list[int] = []
    path = client.get_blob_to("a/b", described(data), store, reported.append)
    assert path.read_bytes() == data and sum(reported) == len(data)
    ranges = [r.headers.get("range") for r in fake.requests if r.method == "GET" and "/blobs/" in r.path]
    assert ranges == [None, f"bytes={4 * MIB}-"]
    assert client.get_blob_to("a/b", described(data), store) == path
    assert fake.count("GET", "/blobs/") == 2, "what is in the store is not asked for"


def test_resume_after_a_kill(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    """A download that an earlier run began is resumed."""
    data = random.Random(2).randbytes(3 * MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(data[: 2 * MIB])
    assert client.get_blob_to("a/b", described(data), store).read_bytes() == data
    assert [r.headers.get("range") for r in fake.requests if "/blobs/" in r.path] == [f"bytes={2 * MIB}-"]
    assert not partial.exists()


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * (4 * MIB), b"x" * (3 * MIB)])
def test_damaged_partial_file(fake: FakeRegistry, client: RegistryClient, store: Store, left: bytes) -> None:
    """A partial file with wrong bytes is deleted, and the blob is downloaded from the start."""
    data = random.Random(3).randbytes(3 * MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    reported: list[int] = []
    assert client.get_blob_to("a/b", described(data), store, reported.append).read_bytes() == data
    assert sum(reported) == len(data)


def test_ranges_ignored(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    """When the registry sends the whole blob, the bytes that are there already are skipped."""
    data = random.Random(4).randbytes(2 * MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(data[: MIB + 3])
    fake.fault = lambda r: Reply(200, body=data) if "/blobs/" in r.path else None
    assert client.get_blob_to("a/b", described(data), store).read_bytes() == data
    assert fake.count("GET", "/blobs/") == 1, "what comes twice is skipped"


def test_digest_mismatch(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    """Other content than the digest says is refused and deleted."""
    data = b"good" * 1000
    fake.blobs["a/b"] = {sha256(data): b"evil" * 1000}
    with pytest.raises(HashMismatch, match="different content .* twice"):
        client.get_blob_to("a/b", described(data), store)
    assert store.get(sha256(data)) is None and not list((store.root / "partial").iterdir())


def range_of(request: Request) -> str:
    start = request.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-")
    return f"bytes {start}-{start}/9999999"


def test_hash(fake: FakeRegistry, client: RegistryClient) -> None:
    """A blob's digest is that of the bytes that the registry returns, whatever it should be."""
    data = random.Random(3).randbytes(4 * MIB)
    digest, blob = fake.put("a/b", data), described(data)
    seen: list[int] = []
    assert client.hash_blob("a/b", blob, seen.append) == (digest, len(data)) and sum(seen) == len(data)
    fake.fail_once("GET", "/blobs/", Cut(2 * MIB))
    assert client.hash_blob("a/b", blob) == (digest, len(data))
    fake.blobs["a/b"][digest] = data[:-1]
    assert client.hash_blob("a/b", blob) == (sha256(data[:-1]), len(data) - 1)
    fake.fault = lambda request: Reply(206, {"Content-Range": range_of(request)}, b"x")
    assert client.hash_blob("a/b", blob)[1] == TRIES, "one byte a request does not go on for ever"
    fake.fault = lambda request: None
    fake.blobs["a/b"][digest] = data + b"more"
    found, size = client.hash_blob("a/b", blob)
    assert found != digest and size == len(data) + 4
    with pytest.raises(RegistryError, match="404"):
        client.hash_blob("c/d", blob)
