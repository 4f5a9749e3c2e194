"""Downloads and mounts of blobs."""

from __future__ import annotations

import gzip
import hashlib
import random

import pytest

from builder.core.errors import HashMismatch, RegistryError
from builder.core.store.blobs import Store
from builder.formats.registry.client import RegistryClient
from tests.support.blobs import MIB, described
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, sha256


def test_failed_mount(fake: FakeRegistry, client: RegistryClient) -> None:
    """A mount that fails leaves no upload session behind, and is no error."""
    digest = fake.put("other/repo", b"layer")
    assert client.blobs.mount("a/b", digest, "other/repo") and fake.has("a/b", b"layer")
    assert not client.blobs.mount("a/b", sha256(b"unknown"), "other/repo")
    assert not fake.uploads, "the upload that was begun instead is cancelled"
    fake.fail_once("POST", "/uploads/", Reply(403))
    assert not client.blobs.mount("a/b", digest, "secret/repo")


def test_broken_note_of_a_blob(fake: FakeRegistry, client: RegistryClient) -> None:
    """A blob that the registry cannot report counts as missing for a push: the upload says what is wrong."""
    digest = fake.put("a/b", b"layer")
    fake.fault = lambda r: Reply(500)
    assert not client.blobs.has("a/b", described(b"layer"))
    fake.fault = lambda r: Reply(400)
    with pytest.raises(RegistryError, match=f"did not report whether .*a/b has {digest}: 400"):
        client.blobs.has("a/b", described(b"layer"))
    fake.fault = lambda r: None
    assert client.blobs.has("a/b", described(b"layer"))


@pytest.mark.parametrize("status", [405, 403, 400, 401, 500, 501])
def test_no_head(fake: FakeRegistry, client: RegistryClient, status: int) -> None:
    """A registry that refuses HEAD of blobs is asked with GET; skopeo 1.22 and crane 0.20 give up."""
    fake.oddity = lambda r, usual, headers: status if r.method == "HEAD" else usual
    fake.put("a/b", b"layer")
    assert client.blobs.stored("a/b", described(b"layer")) == len(b"layer")
    assert client.blobs.stored("a/b", described(b"other")) is None


def test_head_of_everything(fake: FakeRegistry, client: RegistryClient) -> None:
    """A proxy that answers every HEAD with 200 and no length does not make a missing blob present."""
    fake.fault = lambda r: Reply(200) if r.method == "HEAD" else None
    fake.put("a/b", b"layer")
    assert client.blobs.has("a/b", described(b"layer"))
    assert not client.blobs.has("a/b", described(b"other"))


@pytest.mark.parametrize("status", [400, 405, 409, 500])
def test_mount_is_refused(fake: FakeRegistry, client: RegistryClient, status: int) -> None:
    """A mount that a registry refuses in any way is no error: the blob is uploaded."""
    fake.fault = lambda r: Reply(status)
    assert not client.blobs.mount("a/b", sha256(b"layer"), "other/repo")


def test_resume_after_a_cut(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    """After a broken connection only the rest of a blob is requested, and from then on nothing."""
    data = random.Random(1).randbytes(6 * MIB)
    fake.put("a/b", data)
    fake.fail_once("GET", "/blobs/", Cut(after=4 * MIB))
    reported: list[int] = []
    path = client.blobs.download_to_store("a/b", described(data), store, reported.append)
    assert path.read_bytes() == data and sum(reported) == len(data)
    ranges = [r.headers.get("range") for r in fake.requests if r.method == "GET" and "/blobs/" in r.path]
    assert ranges == [None, f"bytes={4 * MIB}-"]
    assert client.blobs.download_to_store("a/b", described(data), store) == path
    assert fake.count("GET", "/blobs/") == 2, "what is in the store is not asked for"


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * (4 * MIB), b"x" * (3 * MIB)])
def test_damaged_partial_file(fake: FakeRegistry, client: RegistryClient, store: Store, left: bytes) -> None:
    """A partial file with wrong bytes is deleted, and the blob is downloaded from the start."""
    data = random.Random(3).randbytes(3 * MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    reported: list[int] = []
    assert client.blobs.download_to_store("a/b", described(data), store, reported.append).read_bytes() == data
    assert sum(reported) == len(data)


def test_digest_mismatch(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    """Other content than the digest says is refused and deleted."""
    data = b"good" * 1000
    fake.blobs["a/b"] = {sha256(data): b"evil" * 1000}
    with pytest.raises(HashMismatch, match="different content .* twice"):
        client.blobs.download_to_store("a/b", described(data), store)
    assert store.get(sha256(data)) is None and not list((store.root / "partial").iterdir())


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy(
    fake: FakeRegistry, client: RegistryClient, store: Store, waits: list[float], status: int
) -> None:
    """A download waits as long as the registry says, and six attempts end it."""
    digest = fake.put("a/b", b"layer")
    fake.fail_once("GET", "/blobs/", Reply(status, {"Retry-After": "7"}), times=2)
    assert client.blobs.download_to_store("a/b", described(b"layer"), store).read_bytes() == b"layer"
    assert waits == [7, 7]
    fake.fault = lambda r: Reply(status)
    with pytest.raises(RegistryError, match=f"{digest} of .*: {status}"):
        client.blobs.hash("a/b", described(b"layer"))
    assert fake.count("GET", "/blobs/") == 3 + 6


@pytest.mark.parametrize(
    ("sentence", "answer"),
    [
        ("the range is not the one that was asked for", Reply(206, {"Content-Range": "bytes 0-9/9"}, b"x")),
        ("no range is stated", Reply(206, {}, b"x")),
        ("ranges are refused", Reply(400)),
        ("ranges are not known", Reply(501)),
    ],
)
def test_no_ranges(
    fake: FakeRegistry, client: RegistryClient, store: Store, sentence: str, answer: Reply
) -> None:
    """A registry that cannot continue a download sends the blob from its beginning."""
    data = random.Random(4).randbytes(MIB)
    fake.put("a/b", data)
    partial = store.root / "partial" / f"blob-{hashlib.sha256(data).hexdigest()}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(data[:1000])
    fake.fault = lambda r: answer if "range" in r.headers else None
    path = client.blobs.download_to_store("a/b", described(data), store)
    assert path.read_bytes() == data, sentence


def test_encoded_although_not_asked(fake: FakeRegistry, client: RegistryClient, store: Store) -> None:
    """A proxy that compresses every answer is understood, as by skopeo 1.22 and crane 0.20."""
    data = random.Random(5).randbytes(MIB)
    fake.put("a/b", data)
    body = gzip.compress(data)
    fake.fault = lambda r: Reply(200, {"Content-Encoding": "gzip"}, body) if r.method == "GET" else None
    assert client.blobs.get("a/b", described(data)) == data
    assert client.blobs.download_to_store("a/b", described(data), store).read_bytes() == data
    body = data
    with pytest.raises(RegistryError, match="its answer is encoded wrongly"):
        client.blobs.get("a/b", described(data))
    with pytest.raises(RegistryError, match="its answer is encoded wrongly"):
        client.blobs.hash("a/b", described(data))
