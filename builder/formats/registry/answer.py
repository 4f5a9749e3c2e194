"""A registry's response, read completely."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx2

from builder.core.errors import RegistryError
from builder.formats.net.answers import load_json, read_body
from builder.formats.oci.documents import MAX_DOCUMENT

#: HTTP statuses of a registry that may accept the same request later.
BUSY = frozenset({429, 500, 502, 503, 504})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: In bytes: no manifest, index, config, error or page of a list is larger.
MAX_ANSWER = MAX_DOCUMENT
#: In bytes: small blobs that are read into memory, such as an attached SBOM.
MAX_SMALL_BLOB = 32 << 20
#: In bytes: a response that states why there is no blob.
MAX_REFUSAL = 64 << 10
#: Errors of one response that a message quotes.
_MAX_ERRORS = 5

#: The permissions that a token must include: ``repository:NAME:pull,push`` (Docker's token
#: authentication).
Scopes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a registry."""

    method: str
    url: httpx2.URL
    scopes: Scopes = frozenset()
    repository: str = ""
    """Decides which credentials are used, since auth files may list credentials per repository."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Callable[[], Iterator[bytes]] | None = None
    """A function is called each time that the request is sent."""
    most: int = MAX_ANSWER
    """In bytes: a larger response is refused. 0: the body of a success is not read."""
    authorization: str | None = None
    """The header of a token request, for the host of ``url`` alone; None: a request to the registry,
    with what it asks for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with its body."""

    status: int
    reason: str
    headers: httpx2.Headers
    body: bytes
    url: httpx2.URL
    """The address that answered, after redirects."""

    def errors(self) -> list[tuple[str, str]]:
        """Return the first few error codes of the body (distribution-spec), with their messages."""
        try:
            entries = load_json(self.body)["errors"][:_MAX_ERRORS]
            pairs = [(str(e.get("code", "")), str(e.get("message", ""))) for e in entries]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []
        return [(printable(code, 100), printable(message, 300)) for code, message in pairs]

    def codes(self) -> tuple[str, ...]:
        """Return the error codes in the body."""
        return tuple(code for code, _ in self.errors())

    @property
    def is_success(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """The ``Content-Type`` without parameters."""
        return printable(str(self.headers.get("Content-Type", "")).partition(";")[0].strip(), 255)

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next request (``Retry-After``); None: not stated."""
        text = self.headers.get("Retry-After", "").strip()
        seconds = number(text)
        if seconds is not None:
            return float(seconds)
        try:  # a date
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            return None


class Busy(httpx2.TransportError):
    """The registry may accept the same request later: its answer has one of :data:`BUSY`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.reason}")
        self.answer = answer


def content_length(headers: httpx2.Headers) -> int | None:
    """Return the length of a content in bytes; None: not stated, or that of compressed bytes."""
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        return None
    return number(headers.get("Content-Length", ""))


def printable(text: str, most: int) -> str:
    """Return at most ``most`` characters of a registry's text; control characters become blanks."""
    return "".join(c if c.isprintable() else " " for c in text[:most])


def number(text: str) -> int | None:
    """Return the number of a header; None when it is something else.

    ``isdigit`` accepts characters that ``int`` does not.
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def parse_url(text: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """Return an address that a registry sent.

    Args:
        text: the address.
        base: what a relative address is relative to.

    Raises:
        ValueError: it is not a URL with ``http`` or ``https`` and the name of a host.
    """
    try:
        url = base.join(text) if base is not None else httpx2.URL(text)
        usable = url.scheme in ("http", "https") and re.fullmatch(r"[\w.:-]+", url.host)
    except (httpx2.InvalidURL, ValueError):  # idna's errors are ValueErrors
        usable = False
    if not usable:
        raise ValueError("not a URL")
    return url


def read_answer(response: httpx2.Response, most: int = MAX_ANSWER) -> Answer:
    """Read a response.

    Args:
        response: the response.
        most: the largest allowed body in bytes; 0: see :attr:`Request.most`.

    Raises:
        RegistryError: it is larger.
        httpx2.TransportError: the connection broke, or is too slow.
    """
    is_read = most > 0 or not response.is_success
    most = most or MAX_REFUSAL
    try:
        body = read_body(response, most, decode=True) if is_read else b""
    except ValueError:
        raise _too_large(response, most) from None
    status, reason = response.status_code, response.reason_phrase
    return Answer(status, reason, response.headers, body, response.url)


def _too_large(response: httpx2.Response, most: int) -> RegistryError:
    limit = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
    return RegistryError(
        f"{response.url.host} sent a response of more than {limit}",
        "is this the address of a registry?",
        host=response.url.host,
    )
