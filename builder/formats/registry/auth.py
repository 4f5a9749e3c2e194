"""The Basic and Bearer schemes of Docker's token authentication.

A registry answers the first request with 401 and a challenge; from then on every request carries a
header::

    GET /v2/a/b/blobs/sha256:...         401, WWW-Authenticate: Bearer realm="https://auth.example/token",...
    GET https://auth.example/token?...   200, {"token": "...", "expires_in": 300}
    GET /v2/a/b/blobs/sha256:...         with the header Authorization: Bearer ...
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlencode

import httpx2

from builder.core.errors import RegistryError
from builder.formats.net.answers import load_json
from builder.formats.net.proxies import host_name, is_loopback

from .answer import Answer, Request, Scopes, number, parse_url
from .credentials import ANONYMOUS, Credentials
from .errors import credentials_hint

log = logging.getLogger(__name__)

#: Seconds that a token is valid at least, whatever the token server states (Docker's token
#: authentication); skopeo has the same limit. A registry that refuses it earlier gets a new one.
DEFAULT_LIFETIME_S = 60.0
#: In bytes: a token with all its claims has some kilobytes.
MAX_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge of a ``WWW-Authenticate`` header (RFC 9110, 11.6.1)."""

    scheme: str
    """In lower case."""
    params: dict[str, str]


#: ``key="quoted"``, ``key=plain``, or the name of a scheme. A word is read once.
_TOKEN = re.compile(r'([A-Za-z0-9_-]++)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?')


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """Return the challenges of a response; one ``WWW-Authenticate`` header may contain several."""
    found: list[Challenge] = []
    for header in headers:
        for match in _TOKEN.finditer(header):
            word, quoted, plain = match.groups()
            if plain is None and quoted is None:
                found += [Challenge(word.lower(), {})] if word[0].isalpha() else []
            elif found:
                value = plain if plain is not None else re.sub(r"\\(.)", r"\1", quoted)
                found[-1].params[word.lower()] = value
    return found


@dataclass(repr=False, eq=False)  # repr would show tokens
class Authenticator:
    """Answers a registry's challenges; has a token for each set of scopes. Safe for threads."""

    host: str
    """The registry, for messages."""
    send: Callable[[Request], Answer]
    """Sends token requests; repeats them while the server is busy."""
    find: Callable[[str], Credentials]
    """Returns the credentials for a repository; called at the first challenge, not before."""
    secure: Callable[[], bool]
    """Whether the registry uses TLS; passwords are then sent to token servers with https only."""
    warn: Callable[[str], None]
    """Receives a warning when the password is sent to another domain; repeats are dropped there."""
    used: Credentials = ANONYMOUS
    """The credentials that were used last, for messages."""
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _challenge: Challenge | None = field(default=None, init=False)
    _tokens: dict[Scopes, tuple[str, float]] = field(default_factory=dict, init=False)

    def header(self, scopes: Scopes, repository: str) -> str | None:
        """Return the ``Authorization`` header for a request; None before the first challenge.

        Raises:
            RegistryError: the token server refuses, or cannot be reached.
        """
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                self.used = self.find(repository)
                return self.used.basic if self.used.username else None
            token, expires = self._tokens.get(scopes, ("", 0.0))
            if time.monotonic() >= expires:
                token, expires = self._fetch(self._challenge, scopes, repository)
                self._tokens[scopes] = token, expires
            return f"Bearer {token}"

    def answer(
        self, headers: Iterable[str], scopes: Scopes, repository: str, sent: str | None
    ) -> bool:
        """Store the challenge of a 401 response; return True if the request can be sent again.

        Args:
            headers: the ``WWW-Authenticate`` headers.
            scopes: of the request.
            repository: of the request.
            sent: the ``Authorization`` header that was refused; None when none was sent.
        """
        found = {c.scheme: c for c in reversed(parse_challenges(headers))}
        challenge = found.get("bearer")
        if challenge is None or not challenge.params.get("realm"):
            # Without a challenge that it knows, crane 0.20 sends the password as well.
            challenge = found.get("basic") or self._challenge or Challenge("basic", {})
        with self._lock:
            self._challenge = challenge
            if challenge.scheme == "basic":
                self.used = self.find(repository)
                return sent is None and bool(self.used.username)
            stored = self._tokens.get(scopes, ("",))[0]
            if sent is not None and stored == sent.removeprefix("Bearer "):
                del self._tokens[scopes]
            return True

    def _fetch(self, challenge: Challenge, scopes: Scopes, repository: str) -> tuple[str, float]:
        """Return a new token, and the time (of time.monotonic) from which on it must be renewed."""
        host = self.host
        self.used = credentials = self.find(repository)
        try:
            url = parse_url(challenge.params["realm"])
        except ValueError:
            message = f"the address of the token server of {host} is not a URL"
            raise RegistryError(message, "is this the address of a registry?", host=host) from None
        where = f"the token server {url.host} of {host}"
        self._check_owner(url, where, credentials)
        log.info("asking %s for %s, credentials: %s", where, sorted(scopes), credentials.source)
        started = time.monotonic()
        answer = self.send(_token_request(challenge, url, scopes, credentials))
        if answer.status != 200:
            message = f"{where} refused: {answer.status} {answer.reason}"
            hint = credentials_hint(host, credentials)
            raise RegistryError(message, hint, status=answer.status, host=host)
        token, lifetime = _parse_token(answer.body)
        if not token:
            hint = "this is a fault of the registry: try again later"
            raise RegistryError(f"{where} answered without a token", hint, host=host)
        # Renewed early: the token of an upload that takes minutes must be valid at its end.
        return token, started + max(lifetime * 0.75 - 5, lifetime * 0.25)

    def _check_owner(self, url: httpx2.URL, where: str, credentials: Credentials) -> None:
        """Refuse to send a password in clear; warn before it is sent to another domain."""
        if credentials and self.secure() and url.scheme != "https":
            raise RegistryError(
                f"{where} does not use https, so no password is sent to it",
                "ask the registry's owner to correct the realm in its configuration",
                host=self.host,
            )
        if credentials and not same_owner(self.host, url.host):
            self.warn(
                f"{self.host} has its token server on another domain: the credentials of "
                f"{credentials.source} are sent to {url.host}"
            )


def _token_request(
    challenge: Challenge, url: httpx2.URL, scopes: Scopes, credentials: Credentials
) -> Request:
    """Return a POST with the identity token (OAuth2), else a GET with or without a password."""
    service = challenge.params.get("service", "")
    wanted = sorted(scopes) or [challenge.params.get("scope", "")]
    if credentials.identity_token:
        form = {
            "service": service,
            "client_id": "builder",
            "grant_type": "refresh_token",
            "scope": " ".join(wanted),
            "refresh_token": credentials.identity_token,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode()
        return Request("POST", url, headers=headers, body=body, most=MAX_ANSWER, authorization="")
    query = {"service": [service], "scope": wanted}
    url = url.copy_merge_params({key: found for key, found in query.items() if any(found)})
    authorization = credentials.basic if credentials else ""
    return Request("GET", url, most=MAX_ANSWER, authorization=authorization)


def _parse_token(body: bytes) -> tuple[str, float]:
    """Return the token and its lifetime in seconds; an empty token if the response has none."""
    try:
        data = load_json(body)
        token = str(data.get("token") or data.get("access_token") or "")
    except (ValueError, AttributeError):
        return "", 0.0
    is_header = re.fullmatch(r"[!-~]*", token)  # it becomes part of one
    lifetime = max(number(str(data.get("expires_in"))) or 0, DEFAULT_LIFETIME_S)
    return token if is_header else "", lifetime


#: Domains of registries whose token servers are in another one: ``registry.hub.docker.com`` is
#: Docker Hub.
_TOKEN_DOMAINS = {"docker.com": "docker.io"}


def same_owner(registry: str, realm: str) -> bool:
    """Return whether a token server belongs to a registry, as far as their names show it.

    Known and the same: ``docker.io`` and ``auth.docker.io``; ``registry.gitlab.com`` and
    ``gitlab.com``; ``ghcr.io``, ``quay.io`` and Harbor answer themselves.

    Args:
        registry: ``host[:port]``.
        realm: the host of the token server.
    """
    if is_loopback(registry):
        return is_loopback(f"[{realm}]" if ":" in realm else realm)
    domain = _domain(host_name(registry).lower())
    return _domain(realm.lower()) in (domain, _TOKEN_DOMAINS.get(domain))


def _domain(host: str) -> str:
    """Return the registered part of a host name: two labels, or three below ``co.uk`` and the like.

    The public suffix list would be exact; here a wrong result is a warning too many or one too few.
    """
    labels = host.rstrip(".").split(".")
    if labels[-1].isdigit() or ":" in host:
        return host  # an IP address
    has_two_part_suffix = len(labels) > 2 and len(labels[-1]) == 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3:] if has_two_part_suffix else labels[-2:])
