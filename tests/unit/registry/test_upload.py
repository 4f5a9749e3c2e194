"""Uploads to a registry that misbehaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.errors import RegistryError
from builder.model import OCI_LAYER_GZIP, Descriptor
from builder.registry import transport, upload
from builder.registry.client import RegistryClient
from tests.support.blobs import MIB, random_blob
from tests.support.blobs import upload as send
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, sha256


def test_two_requests(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A blob is sent with one POST and one PUT."""
    path, data = random_blob(tmp_path, 3 * MIB + 5)
    send(client, path, data)
    assert fake.has("a/b", data)
    assert [r.method for r in fake.requests if r.path != "/v2/"] == ["POST", "PUT"]
    assert client.head_blob("a/b", sha256(data)) == len(data)


def test_empty_blob(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A blob of no bytes is uploaded too."""
    path, data = random_blob(tmp_path, 0)
    send(client, path, data)
    assert fake.has("a/b", b"")


def test_resume_after_a_cut(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """After a broken connection only the bytes that the registry lacks are sent, in the same session."""
    path, data = random_blob(tmp_path, 20 * MIB)
    fake.fail_once("PUT", "/uploads/", Cut(after=9 * MIB))
    send(client, path, data)
    assert fake.has("a/b", data)
    patched = sum(len(r.body) for r in fake.requests if r.method == "PATCH")
    assert patched == 11 * MIB, "only the rest goes out again"
    assert fake.count("POST") == 1, "in the same session"


def test_forgotten_session(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A session that the registry has forgotten is replaced by a new one."""
    path, data = random_blob(tmp_path, 5 * MIB)
    fake.fail_once("PUT", "/uploads/", Reply(404, body=b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}'))
    done = fake.fault

    def forget(request: Any) -> Any:
        answer = done(request)
        if answer:
            fake.uploads.clear()
        return answer

    fake.fault = forget
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count("POST") == 2


def test_lost_response(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """When the registry has the blob and only its response was lost, nothing is sent again."""
    path, data = random_blob(tmp_path, 2 * MIB)

    def fault(request: Any) -> Any:
        if request.method == "PUT":
            fake.put("a/b", data)
            return Cut(after=2 * MIB)
        return None

    fake.fault = fault
    send(client, path, data)
    assert fake.count("PUT") == 1, "the registry has it: nothing is sent again"


@pytest.mark.parametrize("limit", [4 * MIB, MIB])
def test_chunks_after_413(fake: FakeRegistry, client: RegistryClient, tmp_path: Path, limit: int) -> None:
    """Bodies that are too large are split into chunks, and the next blob starts with the size that was
    accepted.
    """
    fake.put_limit = fake.patch_limit = limit
    first, data = random_blob(tmp_path, 24 * MIB)
    send(client, first, data)
    assert fake.has("a/b", data)
    too_large = [r.method for r in fake.requests if len(r.body) > limit]
    assert too_large[0] == "PUT" and len(too_large) <= 3, "the size comes down fast"
    refused = fake.count("PUT")
    second, more = random_blob(tmp_path, 23 * MIB)
    send(client, second, more)
    assert fake.has("a/b", more)
    assert fake.count("PUT") == refused + 1, "the second blob ends with one empty PUT: it was not tried whole"


def test_413_before_the_body_is_read(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A registry may refuse with 413 and close the connection while the body is sent."""
    path, data = random_blob(tmp_path, 12 * MIB)
    fake.fail_once("PUT", "/uploads/", Reply(413, drain=False))
    send(client, path, data)
    assert fake.has("a/b", data)


def test_known_chunk_limit(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For registries with a known limit the first chunk has that size already."""
    monkeypatch.setitem(upload.CHUNKS, fake.host, 4 * MIB)
    fake.patch_limit = 4 * MIB
    path, data = random_blob(tmp_path, 40 * MIB)
    fake.fail_once("PUT", "/uploads/", Cut(after=1000))
    send(client, path, data)
    assert fake.has("a/b", data)
    sizes = [len(r.body) for r in fake.requests if r.method == "PATCH"]
    assert max(sizes) == 4 * MIB and len(sizes) == 10, "no chunk had to be refused first"


def test_minimum_chunk(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """Chunks are not smaller than OCI-Chunk-Min-Length."""
    path, data = random_blob(tmp_path, 12 * MIB)
    session = "fixed"
    fake.uploads[session] = bytearray()
    seen: list[str] = []

    def fault(request: Any) -> Any:
        seen.append(request.method)
        if request.method == "POST":
            return Reply(
                202, {"Location": f"/v2/a/b/blobs/uploads/{session}", "OCI-Chunk-Min-Length": str(5 * MIB)}
            )
        if request.method == "PUT" and seen.count("PUT") == 1:
            return Reply(413)
        return None

    fake.fault = fault
    send(client, path, data)
    assert [len(r.body) for r in fake.requests if r.method == "PATCH"] == [5 * MIB, 5 * MIB, 2 * MIB]


def test_too_large_at_any_size(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A registry that refuses the smallest chunk too ends the upload, with a hint about the quota."""
    fake.put_limit = fake.patch_limit = 1000
    path, data = random_blob(tmp_path, 3 * MIB)
    with pytest.raises(RegistryError, match=r"413 .*no more than 1000 bytes") as caught:
        send(client, path, data)
    assert "quota" in caught.value.hint


def test_retry_after(fake: FakeRegistry, client: RegistryClient, waits: list[float], tmp_path: Path) -> None:
    """Retry-After decides how long to wait."""
    path, data = random_blob(tmp_path, MIB)
    fake.fail_once("POST", "/uploads/", Reply(429, {"Retry-After": "7"}), times=2)
    send(client, path, data)
    assert fake.has("a/b", data) and waits == [7.0, 7.0]
    fake.fail_once("PUT", "/uploads/", Reply(503, {"Retry-After": "3"}))
    path, data = random_blob(tmp_path, MIB + 1)
    send(client, path, data)
    assert fake.has("a/b", data) and waits == [7.0, 7.0, 3.0]


def test_no_progress(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """Six attempts without a new byte end the upload."""
    path, data = random_blob(tmp_path, MIB)
    fake.fault = lambda request: Cut() if request.method in ("PUT", "PATCH") else None
    with pytest.raises(RegistryError, match="the connection broke") as caught:
        send(client, path, data)
    assert "not transferred again" in caught.value.hint
    assert fake.count("PUT") + fake.count("PATCH") == transport.TRIES


def test_wrong_file(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A file with another digest or size, or no file, is an error."""
    path, data = random_blob(tmp_path, MIB)
    with pytest.raises(RegistryError, match="DIGEST_INVALID") as caught:
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(b"other"), len(data)), path)
    assert "damaged" in caught.value.hint
    with pytest.raises(RegistryError, match="has 1048576 bytes, expected 5"):
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), path)
    with pytest.raises(RegistryError, match="cannot read the layer"):
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), tmp_path / "gone")
