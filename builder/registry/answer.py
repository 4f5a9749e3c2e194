"""A registry's response, read completely."""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx

from builder.errors import RegistryError

#: HTTP statuses of a registry that may accept the same request later.
BUSY = frozenset({429, 500, 502, 503, 504})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: In bytes: no manifest, error or list of tags is larger.
MAX_ANSWER = 32 << 20

#: The permissions that a token must include: ``repository:NAME:pull,push`` (Docker's token authentication).
Scopes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a registry."""

    method: str
    url: httpx.URL
    scopes: Scopes = frozenset()
    repository: str = ""
    """Decides which credentials are used, since auth files may list credentials per repository."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Callable[[], Iterator[bytes]] | None = None
    """A function is called each time that the request is sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with its body."""

    status: int
    reason: str
    headers: httpx.Headers
    body: bytes
    url: httpx.URL
    """The address that answered, after redirects."""

    def errors(self) -> list[tuple[str, str]]:
        """The codes and messages in the body (distribution-spec, error codes)."""
        try:
            entries = json.loads(self.body)["errors"]
            return [(str(e.get("code", "")), str(e.get("message", ""))[:300]) for e in entries]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []

    def codes(self) -> tuple[str, ...]:
        """The error codes in the body."""
        return tuple(code for code, _ in self.errors())

    @property
    def media_type(self) -> str:
        """The ``Content-Type`` without parameters."""
        return str(self.headers.get("Content-Type", "")).partition(";")[0].strip()

    @property
    def next_page(self) -> str | None:
        """The address of the next page of a list (RFC 8288, ``Link``); None on the last page."""
        match = re.match(r'\s*<([^>]+)>\s*;\s*rel="?next"?', self.headers.get("Link", ""))
        return match[1] if match else None

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next request (``Retry-After``: a number or a date); None: not stated."""
        text = self.headers.get("Retry-After", "").strip()
        if text.isdigit():
            return float(text)
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, TypeError):
            return None


def read_answer(response: httpx.Response) -> Answer:
    """Reads a response.

    Raises:
        RegistryError: it is larger than :data:`MAX_ANSWER`.
    """
    body = bytearray()
    for data in response.iter_raw():
        body += data
        if len(body) > MAX_ANSWER:
            raise RegistryError(
                f"{response.url.host} sent a response of more than {MAX_ANSWER >> 20} MiB",
                "is this the address of a registry?",
                host=response.url.host,
            )
    return Answer(response.status_code, response.reason_phrase, response.headers, bytes(body), response.url)


def drain(response: httpx.Response) -> None:
    """Reads a short body to its end, so that the connection can be used again."""
    left = 1 << 16
    with contextlib.suppress(httpx.TransportError):
        for data in response.iter_raw():
            left -= len(data)
            if left < 0:
                return
