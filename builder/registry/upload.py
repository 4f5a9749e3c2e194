"""The upload of one blob: one PUT, and chunks where that fails.

One PUT with the whole blob is the fastest way, and all registries accept it. When the registry refuses it as
too large (413), or the connection breaks, the upload continues with chunks (PATCH) from the byte that the
registry has.

The invariant: ``offset`` is the number of bytes that the *registry* reports for this upload session, never
the number that was sent. After every failure the registry is asked (GET on the session), so no byte is
missing or duplicated however the connection broke; and a final PUT with the digest makes the registry check
the whole blob. Example, 20 MiB::

    POST  /v2/a/b/blobs/uploads/            202  Location: /v2/a/b/blobs/uploads/SESSION      offset = 0
    PUT   SESSION?digest=sha256:...         the connection breaks while sending
    HEAD  /v2/a/b/blobs/sha256:...          404  (200 would mean: only the response was lost, done)
    GET   SESSION                           204  Range: 0-9437183                             offset = 9 MiB
    PATCH SESSION  Content-Range: 9-14 MiB  202  Range: 0-14680063                            offset = 14 MiB
    PATCH SESSION  Content-Range: 14-19 MiB 202  Range: 0-19922943                            offset = 19 MiB
    PATCH SESSION  Content-Range: 19-20 MiB 202  Range: 0-20971519                            offset = 20 MiB
    PUT   SESSION?digest=sha256:...         201  (empty body)

A session that the registry has forgotten (404) is replaced by a new one, with ``offset`` 0. Six failures in a
row without a new byte end the upload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from builder.errors import RegistryError
from builder.registry.answer import BUSY, Answer, Request, read_answer
from builder.registry.meter import Meter
from builder.registry.transport import TRIES, push_scopes
from builder.store.files import CHUNK

#: In bytes: the first chunk when one PUT fails, and the smallest. A refused chunk is followed by one of a
#: quarter.
FIRST_CHUNK, MIN_CHUNK = 64 << 20, 1 << 20
#: In bytes: the first chunk for registries with a known limit. ghcr.io refuses larger PATCH bodies with 413.
CHUNKS = {"ghcr.io": 4 << 20}

#: Returns a blob's bytes from an offset (in bytes) on; called again after a failure.
BlobSource = Callable[[int], Iterator[bytes]]


class UploadTransport(Protocol):
    """What an upload needs of :class:`builder.registry.transport.Transport`."""

    host: str

    def url(self, path: str) -> httpx.URL: ...
    def location(self, url: httpx.URL, location: str) -> httpx.URL: ...
    def ask(self, request: Request) -> Answer: ...
    def open(self, request: Request) -> AbstractContextManager[httpx.Response]: ...
    def pause(self, failures: int, answer: Answer | None = None) -> None: ...
    def refusal(self, answer: Answer, action: str) -> RegistryError: ...
    def unreachable(self, error: Exception, where: str) -> RegistryError: ...


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob to upload."""

    repository: str
    digest: str
    size: int
    """In bytes."""
    source: BlobSource


@dataclass(slots=True)
class ChunkSize:
    """The chunk size that a registry accepted, shared by all uploads: only one blob has to find it out."""

    size: int = 0
    """In bytes; 0: try one PUT first."""


class Upload:
    """One blob on its way to a registry.

    Args:
        transport: sends requests.
        blob: what to send.
        exists: asks the registry whether it has the blob.
        shared: the chunk size of earlier uploads; a smaller one is stored there.
        meter: receives the position.
    """

    def __init__(
        self,
        transport: UploadTransport,
        blob: Blob,
        exists: Callable[[], bool],
        shared: ChunkSize,
        meter: Meter,
    ) -> None:
        self._transport = transport
        self._blob = blob
        self._scopes = push_scopes(blob.repository)
        self._exists = exists
        self._shared = shared
        self._meter = meter
        self._chunk = shared.size
        self._min_chunk = MIN_CHUNK
        self._session: httpx.URL | None = None
        self._offset = 0
        self._attempted = 0
        """Bytes in the body of the last request."""

    def run(self) -> None:
        """Uploads the blob.

        Raises:
            RegistryError: the registry refuses it, or cannot be reached.
        """
        failures = 0
        while True:
            before = 0 if self._session is None else self._offset
            answer: Answer | None = None
            error: httpx.TransportError | None = None
            try:
                if self._session is None:
                    self._begin()
                answer = self._step()
            except httpx.TransportError as e:
                error = e
            if error is None and answer is None:
                return
            if answer is not None and answer.status == 202 and self._offset > before:
                failures = 0
                continue
            failures += 1
            if failures >= TRIES or self._is_final(answer):
                raise self._failure(answer, error)
            if self._recover(answer, failures):
                return

    # one step -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Opens an upload session."""
        repository = self._blob.repository
        url = self._transport.url(f"/v2/{repository}/blobs/uploads/")
        answer = self._transport.ask(Request("POST", url, self._scopes, repository, body=b""))
        if answer.status != 202 or "Location" not in answer.headers:
            raise self._transport.refusal(answer, f"begin an upload to {self._transport.host}/{repository}")
        minimum = answer.headers.get("OCI-Chunk-Min-Length", "")
        self._min_chunk = max(MIN_CHUNK, int(minimum)) if minimum.isdigit() else MIN_CHUNK
        self._offset = 0
        self._follow(answer)

    def _step(self) -> Answer | None:
        """Sends one PUT or PATCH; returns None when the registry has the whole blob."""
        size = self._blob.size
        in_one_request = not self._chunk or size <= self._chunk
        if self._offset == 0 and in_one_request:
            return self._finish(0)
        if self._offset >= size:
            return self._finish(size)
        end = min(self._offset + self._chunk, size)
        answer = self._send("PATCH", self._offset, end)
        if answer.status == 202:
            self._offset = min(_bytes_received(answer, end), end)
            self._follow(answer)
        return answer

    def _finish(self, start: int) -> Answer | None:
        answer = self._send("PUT", start, self._blob.size)
        return None if answer.status in (201, 204) else answer

    def _send(self, method: str, start: int, end: int) -> Answer:
        """Sends the bytes from ``start`` to ``end`` (exclusive)."""
        assert self._session is not None
        self._attempted = end - start
        url = self._session
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(end - start)}
        if method == "PUT":
            url = url.copy_merge_params({"digest": self._blob.digest})
        else:
            headers["Content-Range"] = f"{start}-{end - 1}"
        request = Request(
            method, url, self._scopes, self._blob.repository, headers, lambda: self._read(start, end)
        )
        with self._transport.open(request) as response:
            return read_answer(response)

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        position = start
        self._meter.at(position)
        if start == end:
            return
        for data in self._blob.source(start):
            data = data[: end - position]
            yield data
            position += len(data)
            self._meter.at(position)
            if position >= end:
                return
        raise RegistryError(
            f"the blob {self._blob.digest} is {end - position} bytes shorter than expected",
            "a file of the cache was changed: build again",
        )

    def _follow(self, answer: Answer) -> None:
        """The address for the next request; every response of a session may change it."""
        if "Location" in answer.headers:
            self._session = self._transport.location(answer.url, answer.headers["Location"])

    # after a failure ----------------------------------------------------------------------------------------

    def _is_final(self, answer: Answer | None) -> bool:
        """Whether another attempt, from another offset or in a new session, cannot succeed."""
        if answer is None:
            return False
        if answer.status == 413 and self._attempted <= self._min_chunk:
            return True
        if set(answer.codes()) & {"BLOB_UPLOAD_INVALID", "BLOB_UPLOAD_UNKNOWN"}:
            return False
        return answer.status not in (202, 404, 413, 416, *BUSY)

    def _recover(self, answer: Answer | None, failures: int) -> bool:
        """Prepares the next attempt; returns True when the registry has the blob after all."""
        if answer is None or answer.status not in BUSY:
            self._reduce_chunk()
        if answer is not None and answer.status == 413:
            self._shared.size = self._chunk
        else:
            self._transport.pause(failures, answer)
            if self._exists():  # only the response was lost
                self._meter.at(self._blob.size)
                return True
        self._find_offset()
        return False

    def _reduce_chunk(self) -> None:
        """A quarter of the last chunk, or of what was attempted; at least the registry's minimum."""
        first = CHUNKS.get(self._transport.host, FIRST_CHUNK)
        smaller = self._chunk // 4 if self._chunk else first
        self._chunk = max(min(smaller, self._attempted // 4), self._min_chunk)

    def _find_offset(self) -> None:
        """Asks how many bytes the registry has; drops a session that the registry does not know."""
        if self._session is not None:
            request = Request("GET", self._session, self._scopes, self._blob.repository)
            answer = self._transport.ask(request)
            if answer.status in (202, 204):
                self._offset = min(_bytes_received(answer, 0), self._blob.size)
                self._follow(answer)
                return
        self._session, self._offset = None, 0

    def _failure(self, answer: Answer | None, error: Exception | None) -> RegistryError:
        blob, host = self._blob, self._transport.host
        if answer is not None:
            action = f"accept the blob {blob.digest} ({blob.size} bytes) in {host}/{blob.repository}"
            return self._transport.refusal(answer, action)
        assert error is not None
        return self._transport.unreachable(error, host)


def _bytes_received(answer: Answer, default: int) -> int:
    """The bytes that a registry has, from ``Range: 0-N``, where N is the index of the last byte.

    ``0-0`` counts as none: distribution 2.8 (Debian's docker-registry) sends it for an upload without any
    byte, where one byte would be meant.
    """
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", answer.headers.get("Range", "").strip())
    if not match:
        return default
    last = int(match[1])
    return last + 1 if last else 0


def file_source(path: Path) -> BlobSource:
    """The bytes of a file, in chunks of 1 MiB."""

    def read(offset: int) -> Iterator[bytes]:
        with path.open("rb") as f:
            f.seek(offset)
            while data := f.read(CHUNK):
                yield data

    return read


def bytes_source(data: bytes) -> BlobSource:
    """Small data as a blob to upload."""
    return lambda offset: iter((data[offset:],))
