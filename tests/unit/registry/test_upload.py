"""Uploads to a registry that misbehaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.errors import RegistryError
from builder.model import OCI_LAYER_GZIP, Descriptor
from builder.net import pace
from builder.registry import transport, upload
from builder.registry.client import RegistryClient
from builder.registry.source import DamagedSource, HashedSource, bytes_source
from builder.registry.upload import UNKNOWN
from tests.support.blobs import MIB, described, random_blob
from tests.support.blobs import upload as send
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, Request, sha256


def test_two_requests(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A blob is sent with one POST and one PUT; then the registry is asked for its size."""
    path, data = random_blob(tmp_path, 3 * MIB + 5)
    send(client, path, data)
    assert fake.has("a/b", data)
    assert [r.method for r in fake.requests if r.path != "/v2/"] == ["POST", "PUT", "HEAD"]
    assert client.head_blob("a/b", sha256(data)) == len(data)


def test_empty_blob(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A blob of no bytes is uploaded too."""
    path, data = random_blob(tmp_path, 0)
    send(client, path, data)
    assert fake.has("a/b", b"")


def test_resume_after_a_cut(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """After a PUT that broke a new session begins, in chunks: from then on only what is missing is sent."""
    path, data = random_blob(tmp_path, 20 * MIB)
    cuts = {"PUT": 9 * MIB, "PATCH": 3 * MIB}

    def fault(request: Request) -> Cut | None:
        after = cuts.pop(request.method, None)
        return None if after is None else Cut(after)

    fake.fault = fault
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count("POST") == 2
    patched = sum(len(r.body) for r in fake.requests if r.method == "PATCH")
    assert patched == 17 * MIB, "without the 3 MiB that the registry had"


def test_cut_is_kept(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A registry that keeps a cut blob under the digest of the whole one gets all of it again."""
    path, data = random_blob(tmp_path, 8 * MIB)
    fake.keeps_cut_put = True
    fake.fail_once("PUT", "/uploads/", Cut(after=3 * MIB))
    send(client, path, data)
    assert fake.has("a/b", data)
    fake.blobs["a/b"][sha256(data)] = data[:MIB]
    assert not client.has_blob("a/b", described(data)), "a blob of another size is not the blob"
    send(client, path, data)
    assert fake.has("a/b", data) and client.has_blob("a/b", described(data))


def test_cut_blob_stays(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A registry that answers 201 and goes on with the cut blob is an error with both sizes."""
    path, data = random_blob(tmp_path, 8 * MIB)
    fake.keeps_cut_put, fake.replaces_blobs = True, False
    fake.fail_once("PUT", "/uploads/", Cut(after=3 * MIB))
    message = f"holds {3 * MIB} bytes under .* but {8 * MIB} were sent"
    with pytest.raises(RegistryError, match=message) as caught:
        send(client, path, data)
    assert "owner" in caught.value.hint


def test_size_of_head(fake: FakeRegistry, client: RegistryClient) -> None:
    """A size that HEAD does not state is unknown; one that differs is confirmed by a GET."""
    blob = described(b"x" * 100)
    fake.put("a/b", b"x" * 100)
    head: dict[str, str] = {}
    fake.fault = lambda r: Reply(200, head) if r.method == "HEAD" else None
    assert client.has_blob("a/b", blob), "a proxy that answers HEAD with Content-Length: 0"
    assert fake.count("GET") == 1
    head["Content-Encoding"] = "gzip"
    assert client.has_blob("a/b", blob) and client.head_blob("a/b", blob.digest) == UNKNOWN
    assert fake.count("GET") == 1


@pytest.mark.parametrize("status", [200, 201, 204])
def test_other_success_of_patch(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path, status: int
) -> None:
    """Every 2xx answer takes the chunk: go-containerregistry's registry answers 204, without a Range."""
    fake.put_limit, fake.patch_status = MIB, status
    path, data = random_blob(tmp_path, 7 * MIB)
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count("PATCH") > 1


@pytest.mark.parametrize("status", [400, 403, 405, 501])
def test_odd_answer_to_patch(fake: FakeRegistry, client: RegistryClient, tmp_path: Path, status: int) -> None:
    """A registry, or a firewall before it, that refuses chunks gets the blob in one PUT of a new session."""
    path, data = random_blob(tmp_path, 7 * MIB)
    cut = [Cut(after=MIB)]

    def fault(request: Request) -> Cut | Reply | None:
        if request.method == "PATCH":
            return Reply(status)
        return cut.pop() if request.method == "PUT" and cut else None

    fake.fault = fault
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count("PATCH") == 1
    fake.put_limit = MIB
    path, data = random_blob(tmp_path, 6 * MIB)
    with pytest.raises(RegistryError, match=str(status)):
        send(client, path, data)


def test_registry_that_takes_one_byte_at_a_time(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    """A registry that reports one more byte for each chunk does not hold the upload for ever."""
    path, data = random_blob(tmp_path, 2 * MIB)
    taken: list[int] = []

    def fault(request: Request) -> Reply | None:
        if request.method == "PUT":
            return Reply(413)
        if request.method != "PATCH":
            return None
        taken.append(1)
        return Reply(202, {"Location": request.path, "Range": f"0-{len(taken)}"})

    fake.fault = fault
    with pytest.raises(RegistryError, match="did not accept the blob"):
        send(client, path, data)
    assert len(taken) < 20


def test_slow_upload(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload below the least rate is broken off and continued, as after a lost connection."""
    path, data = random_blob(tmp_path, 4 * MIB)
    monkeypatch.setattr(pace, "WINDOW_S", 0.0)
    monkeypatch.setattr(pace, "MIN_RATE", 1e15)
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count("POST") == 2
    assert [len(r.body) for r in fake.requests if r.method == "PATCH"] == [MIB] * 4


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
    with pytest.raises(DamagedSource, match=f"is damaged: its bytes are {sha256(data)}"):
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(b"other"), len(data)), path)
    assert not fake.blobs.get("a/b") and all(len(r.body) < MIB for r in fake.requests)
    with pytest.raises(RegistryError, match="has 1048576 bytes, expected 5"):
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), path)
    with pytest.raises(RegistryError, match="cannot read the layer"):
        client.upload_blob("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), tmp_path / "gone")


def test_damaged_in_transit(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A registry that finds the digest wrong gets the blob once more; then it is an error."""
    path, data = random_blob(tmp_path, MIB)
    wrong = Reply(400, body=b'{"errors":[{"code":"DIGEST_INVALID","message":"no"}]}')
    fake.fail_once("PUT", "/uploads/", wrong)
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count("POST") == 2
    fake.requests.clear()
    fake.fault = lambda r: wrong if r.method == "PUT" else None
    with pytest.raises(RegistryError, match="DIGEST_INVALID"):
        send(client, path, data)
    assert fake.count("PUT") == 2


def test_hashed_once() -> None:
    """A source is compared with the digest however often an upload begins again."""
    data = bytes(range(256)) * 8
    parts = [data[:700], data[700:1500], data[1500:]]

    def source(offset: int) -> Iterator[bytes]:
        position = 0
        for part in parts:
            if position + len(part) > offset:
                yield part[max(0, offset - position) :]
            position += len(part)

    hashed = HashedSource(source, sha256(data), len(data))
    assert next(hashed(0)) == data[:700]
    first = hashed(650)
    assert next(first) + next(first) == data[650:1500]
    assert b"".join(hashed(1400)) == data[1400:]
    assert b"".join(hashed(0)) == data
    wrong = HashedSource(source, sha256(b"other"), len(data))
    sent = b""
    with pytest.raises(DamagedSource, match="is damaged"):
        for part in wrong(0):
            sent += part
    assert sent == data[:1500], "the last part is not sent"
    with pytest.raises(DamagedSource, match="5 bytes shorter"):
        list(HashedSource(bytes_source(data), sha256(data), len(data) + 5)(0))
