"""The upload of one blob: one PUT, and chunks where that fails.

One PUT with the whole blob is the fastest way, and all registries accept it. When the registry
refuses it as too large (413), or the connection breaks, a new session sends the blob in chunks
(PATCH), and continues after each failure from the byte that the registry has.

The invariant: ``offset`` is the number of bytes that the *registry* reports for this upload
session, never the number that was sent. After a failed PATCH the registry is asked (GET on the
session), so no byte is missing or duplicated however the connection broke. What a session holds
after a PUT with a body that failed is not defined: it is never continued. Example, 20 MiB::

    POST  /v2/a/b/blobs/uploads/            202  Location: /v2/a/b/blobs/uploads/ONE          offset = 0
    PUT   ONE?digest=sha256:...             the connection breaks after 9 MiB
    HEAD  /v2/a/b/blobs/sha256:...          404  (200 and 20 MiB: only the response was lost, done)
    POST  /v2/a/b/blobs/uploads/            202  Location: /v2/a/b/blobs/uploads/TWO          offset = 0
    PATCH TWO  Content-Range: 0-5 MiB       202  Range: 0-5242879                             offset = 5 MiB
    PATCH TWO  Content-Range: 5-10 MiB      the connection breaks after 1 MiB
    GET   TWO                               204  Range: 0-6291455                             offset = 6 MiB
    ...
    PUT   TWO?digest=sha256:...             201  (empty body)
    HEAD  /v2/a/b/blobs/sha256:...          200  Content-Length: 20971520

The last request compares the size: Pulp 2.30 stores what it received of a PUT that broke off,
without a look at the digest. A session that the registry has forgotten (404) is replaced by a new
one; without a session ``offset`` is 0. Six failures in a row without a new byte end the upload, and
so does sending ten times the blob's bytes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import httpx2

from builder.core.errors import RegistryError
from builder.core.text import human_bytes

from .answer import BUSY, Answer, Busy, Request, number, read_answer
from .source import HashedSource, Meter
from .transport import Transport, push_scopes

log = logging.getLogger(__name__)

#: In bytes: the first chunk when one PUT fails, and the smallest. A refused chunk is followed by
#: one of a quarter.
FIRST_CHUNK, MIN_CHUNK = 64 << 20, 1 << 20
#: Statuses of a registry that does not know the session, or takes no bytes by PUT: Artifactory 6
#: answers 404 (buildkit, issue 1130).
_OTHER_WAY = (404, 405, 501)
#: Times that a blob's bytes may be sent: a token that expires, a refused size and broken connections
#: may each cost some; a registry that takes one byte of each chunk cannot block an upload.
MOST_SENT = 10
#: The size of a blob whose registry does not state it.
UNKNOWN = -1

#: Of a request: an answer, or a broken connection.
_Outcome = Answer | httpx2.RequestError


@dataclass(slots=True)
class ChunkSize:
    """The chunk size that a registry accepted: one upload finds it out for all."""

    size: int = 0
    """In bytes; 0: try one PUT first."""
    only: bool = False
    """A PUT with bytes was refused: all go into chunks, as docker, skopeo and crane send them."""


@dataclass
class Upload:
    """One blob on its way to a registry."""

    transport: Transport
    """Sends requests."""
    repository: str
    """In the registry."""
    blob: HashedSource
    """What to send."""
    stored: Callable[[], int | None]
    """Asks the registry for the size in bytes of the blob that it holds; :data:`UNKNOWN` when it
    does not state it, None when it has no such blob."""
    shared: ChunkSize
    """The chunk size of earlier uploads; a smaller one is stored there."""
    meter: Meter
    """Receives the position."""

    _chunk: int = field(init=False)
    _min_chunk: int = field(default=MIN_CHUNK, init=False)
    _session: httpx2.URL | None = field(default=None, init=False)
    _offset: int = field(default=0, init=False)
    _method: str = field(default="", init=False)
    """Of the last request with bytes of the blob."""
    _attempted: int = field(default=0, init=False)
    """Bytes in the body of the last request."""
    _sent: int = field(default=0, init=False)
    """Bytes that were sent, each time counted."""

    def __post_init__(self) -> None:
        self._chunk = self.shared.size

    def run(self) -> None:
        """Upload the blob.

        Raises:
            DamagedSource: the bytes do not match the digest; the last of them was not sent.
            RegistryError: the registry refuses it, holds something else afterwards, or cannot be
                reached.
        """
        failures = 0
        while True:
            before = self._offset
            outcome = self._attempt()
            if outcome is None:
                self._check_stored()
                return
            gained = isinstance(outcome, Answer) and outcome.is_success and self._offset > before
            failures = 0 if gained else failures + 1
            if self._is_final(outcome):
                raise self._failure(outcome)
            if failures and self._recover(outcome, failures):
                return

    # one step -------------------------------------------------------------------------------------

    def _attempt(self) -> _Outcome | None:
        """Send the next bytes; return None when the registry has the whole blob."""
        try:
            if self._session is None:
                self._begin()
            return self._step()
        except httpx2.RequestError as e:
            return e.answer if isinstance(e, Busy) else e

    def _begin(self) -> None:
        """Open an upload session."""
        repository = self.repository
        answer = self.transport.ask(self.transport.request("POST", repository, "blobs/uploads/"))
        if not answer.is_success or "Location" not in answer.headers:  # the spec says 202
            action = f"begin an upload to {self.transport.host}/{repository}"
            raise self.transport.refusal(answer, action)
        smallest = number(answer.headers.get("OCI-Chunk-Min-Length", "")) or 0
        self._min_chunk = max(MIN_CHUNK, smallest)
        self._offset = 0
        self._follow(answer)

    def _step(self) -> Answer | None:
        """Send one PUT or PATCH; return None when the registry has the whole blob."""
        size = self.blob.size
        in_one_request = not self.shared.only and (not self._chunk or size <= self._chunk)
        if self._offset == 0 and in_one_request:
            return self._finish(0)
        if self._offset >= size:
            return self._finish(size)
        end = min(self._offset + (self._chunk or size), size)
        answer = self._send("PATCH", self._offset, end)
        if answer.is_success:  # the spec says 202; go-containerregistry's registry answers 204
            self._offset = min(_bytes_received(answer, end), end)
            self._follow(answer)
        return answer

    def _finish(self, start: int) -> Answer | None:
        answer = self._send("PUT", start, self.blob.size)
        return None if answer.is_success else answer  # the spec says 201; the size is checked

    def _send(self, method: str, start: int, end: int) -> Answer:
        """Send the bytes from ``start`` to ``end`` (exclusive)."""
        assert self._session is not None
        self._method, self._attempted = method, end - start
        url = self._session
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(end - start)}
        if method == "PUT":
            url = url.copy_merge_params({"digest": self.blob.digest})
        else:
            headers["Content-Range"] = f"{start}-{end - 1}"
        body = partial(self._read, start, end)
        request = Request(method, url, push_scopes(self.repository), self.repository, headers, body)
        with self.transport.open(request) as response:
            return read_answer(response)

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        position = start
        self.meter.at(position)
        for data in self.blob(start) if start < end else ():
            data = data[: end - position]
            yield data
            position += len(data)
            self._sent += len(data)
            self.meter.at(position)
            if position >= end:
                return

    def _follow(self, answer: Answer) -> None:
        """Store the address for the next request; every response of a session may change it."""
        if "Location" in answer.headers:
            self._session = self.transport.location(answer.url, answer.headers["Location"])

    # after a failure ------------------------------------------------------------------------------

    def _is_final(self, answer: _Outcome) -> bool:
        """Return whether another attempt, from another offset or in a new session, cannot help."""
        if self._sent >= MOST_SENT * self.blob.size > 0:
            return True
        if not isinstance(answer, Answer):
            return False
        if answer.status == 413 and self._attempted <= self._min_chunk:
            return True
        if set(answer.codes()) & {"BLOB_UPLOAD_INVALID", "BLOB_UPLOAD_UNKNOWN"}:
            return False
        return not answer.is_success and answer.status not in (413, 416, *_OTHER_WAY, *BUSY)

    def _recover(self, outcome: _Outcome, failures: int) -> bool:
        """Prepare the next attempt; return True when the registry has the blob after all."""
        status = outcome.status if isinstance(outcome, Answer) else 0
        if status in _OTHER_WAY and self._attempted:
            self.shared.only = self._method == "PUT"
        if status not in BUSY:
            # A quarter of the last chunk, or of what was attempted; at least the registry's
            # minimum.
            smaller = self._chunk // 4 if self._chunk else FIRST_CHUNK
            self._chunk = max(min(smaller, self._attempted // 4), self._min_chunk)
            log.info("%s: chunks of %s from now on", self.blob.digest, human_bytes(self._chunk))
        if status == 413:
            self.shared.size = self._chunk
        else:
            if not self.transport.again(failures, outcome):
                raise self._failure(outcome)
            # Only the response was lost? Asked every other time: a server that drops each third
            # request would else drop the same one of the three each time.
            if failures % 2 and self.stored() == self.blob.size:
                self.meter.at(self.blob.size)
                return True
        if self._method == "PUT" and self._attempted:
            self._session, self._offset = None, 0
        else:
            self._find_offset()
        return False

    def _find_offset(self) -> None:
        """Ask how many bytes the registry has; drop a session that the registry does not know."""
        if self._session is not None:
            request = Request("GET", self._session, push_scopes(self.repository), self.repository)
            answer = self.transport.ask(request)
            if answer.status in (202, 204):
                self._offset = min(_bytes_received(answer, 0), self.blob.size)
                self._follow(answer)
                return
        self._session, self._offset = None, 0

    def _check_stored(self) -> None:
        """Compare the size of what the registry holds now, if the registry states it."""
        blob, stored = self.blob, self.stored()
        if stored in (None, UNKNOWN, blob.size):
            return
        raise self.transport.error(
            f"{self.transport.host}/{self.repository} holds {stored} bytes under the digest "
            f"{blob.digest}, but {blob.size} were sent",
            "an earlier upload was cut off there and the registry kept it: ask its owner to delete "
            "this blob",
        )

    def _failure(self, outcome: _Outcome) -> RegistryError:
        blob, host = self.blob, self.transport.host
        if not isinstance(outcome, Answer):
            return self.transport.unreachable(outcome, host)
        action = f"accept the blob {blob.digest} ({blob.size} bytes) in {host}/{self.repository}"
        return self.transport.refusal(outcome, action)


def _bytes_received(answer: Answer, default: int) -> int:
    """Return the bytes that a registry has, from ``Range: 0-N``: N is the index of the last byte.

    ``0-0`` counts as none: distribution 2.8 (Debian's docker-registry) sends it for an upload
    without any byte, where one byte would be meant.
    """
    match = re.fullmatch(r"(?:bytes=)?0-([0-9]{1,18})", answer.headers.get("Range", "").strip())
    if not match:
        return default
    last = int(match[1])
    return last + 1 if last else 0
