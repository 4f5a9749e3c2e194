"""Uploads to a registry that misbehaves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import RegistryError
from builder.core.model import OCI_LAYER_GZIP, Descriptor
from builder.formats.registry import transport
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.source import DamagedSource
from tests.support.blobs import MIB, described, random_blob
from tests.support.blobs import upload as send
from tests.support.fakeregistry import Cut, FakeRegistry, Reply, Request, sha256


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


@pytest.mark.parametrize(
    ("sentence", "method", "status", "changed"),
    [
        ("another status for a session", "POST", 201, {}),
        ("200 for a session", "POST", 200, {}),
        ("a session without Range", "POST", 202, {"Range": None}),
        ("a chunk without Range", "PATCH", 202, {"Range": None}),
        ("200 for a chunk", "PATCH", 200, {}),
        ("201 for a chunk", "PATCH", 201, {}),
        ("204 for a chunk", "PATCH", 204, {}),
        ("a chunk without Location", "PATCH", 202, {"Location": None}),
        ("200 for a blob", "PUT", 200, {}),
        ("202 for a blob", "PUT", 202, {}),
        ("204 for a blob", "PUT", 204, {}),
        ("a blob without Location", "PUT", 201, {"Location": None}),
        ("no query", "POST", 202, {"Location": r"\?.*"}),
        ("a whole address", "POST", 202, {"Location": "^"}),
        ("a name alone", "POST", 202, {"Location": "^.*/"}),
    ],
)
def test_odd_answers(
    fake: FakeRegistry,
    client: RegistryClient,
    tmp_path: Path,
    sentence: str,
    method: str,
    status: int,
    changed: dict[str, str | None],
) -> None:
    """Answers that the specification does not know are followed where they are clear."""
    path, data = random_blob(tmp_path, 3 * MIB)

    def oddity(request: Request, usual: int, headers: dict[str, Any]) -> int:
        if request.method != method or not 200 <= usual < 300:
            return usual
        for name, pattern in changed.items():
            value = headers.pop(name)
            if pattern:
                headers[name] = re.sub(pattern, f"http://{fake.host}" if pattern == "^" else "", value)
        return status

    fake.put_limit, fake.oddity = MIB if method == "PATCH" else None, oddity
    send(client, path, data)
    assert fake.has("a/b", data) and fake.count(method), sentence


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("size", [0, 100, 3 * MIB])
def test_no_bytes_by_put(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path, status: int, size: int
) -> None:
    """A registry that takes no bytes by PUT gets chunks, one for a small blob, and at once for the next."""
    fake.fault = lambda r: (
        Reply(status) if r.method == "PUT" and r.headers.get("content-length") != "0" else None
    )
    path, data = random_blob(tmp_path, size)
    send(client, path, data)
    send(client, *random_blob(tmp_path, 200))
    assert fake.has("a/b", data)
    refused = fake.count("PUT") - 2
    assert refused == 1 and fake.count("POST") == 3, "one PUT was tried, whatever followed"


def test_cut_is_kept(fake: FakeRegistry, client: RegistryClient, tmp_path: Path) -> None:
    """A registry that keeps a cut blob under the digest of the whole one gets all of it again."""
    path, data = random_blob(tmp_path, 8 * MIB)
    fake.keeps_cut_put = True
    fake.fail_once("PUT", "/uploads/", Cut(after=3 * MIB))
    send(client, path, data)
    assert fake.has("a/b", data)
    fake.blobs["a/b"][sha256(data)] = data[:MIB]
    assert not client.blobs.has("a/b", described(data)), "a blob of another size is not the blob"
    send(client, path, data)
    assert fake.has("a/b", data) and client.blobs.has("a/b", described(data))


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
        client.blobs.upload_file("a/b", Descriptor(OCI_LAYER_GZIP, sha256(b"other"), len(data)), path)
    assert not fake.blobs.get("a/b") and all(len(r.body) < MIB for r in fake.requests)
    with pytest.raises(RegistryError, match="has 1048576 bytes, expected 5"):
        client.blobs.upload_file("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), path)
    with pytest.raises(RegistryError, match="cannot read the layer"):
        client.blobs.upload_file("a/b", Descriptor(OCI_LAYER_GZIP, sha256(data), 5), tmp_path / "gone")


def test_registry_that_takes_one_byte_at_a_time(
    fake: FakeRegistry, client: RegistryClient, tmp_path: Path
) -> None:
    """A registry that reports one more byte for each chunk does not hold the upload for ever."""
    path, data = random_blob(tmp_path, 2 * MIB)

    def fault(request: Request) -> Reply | None:
        if request.method == "PUT":
            return Reply(413)
        if request.method != "PATCH":
            return None
        return Reply(202, {"Location": request.path, "Range": f"0-{fake.count('PATCH')}"})

    fake.fault = fault
    with pytest.raises(RegistryError, match="did not accept the blob"):
        send(client, path, data)
    assert fake.count("PATCH") < 20
