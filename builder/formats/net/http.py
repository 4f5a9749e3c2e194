"""HTTP clients that follow this machine's settings: certificates, proxies, netrc, time limits."""

from __future__ import annotations

import contextlib
import netrc
import os
import socket
import ssl
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2

from builder.core.errors import FetchError, UsageError
from builder.core.redact import redact
from builder.core.settings import expand_home
from builder.core.version import __version__

from .pipconfig import pip_configuration

#: Seconds to connect (10), and between two parts of an answer (30).
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
#: Seconds to connect, and for the answer to :func:`probe`.
PROBE_TIMEOUT = httpx2.Timeout(5.0, connect=10.0)


def tls_context() -> ssl.SSLContext:
    """Return the certificates that this machine trusts.

    The first of these that is set: SSL_CERT_FILE, PIP_CERT, REQUESTS_CA_BUNDLE, ``cert`` in pip's
    configuration, the certificates of the system.

    Raises:
        FetchError: one of them names a file without certificates.
    """
    variables = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
    named = [(name, os.environ.get(name)) for name in variables]
    for name, value in (*named, ("pip's configuration (cert)", pip_configuration().cert)):
        if value:
            return _context_from(name, expand_home(value))
    return ssl.create_default_context()


def probe(url: str, refused: int = 400) -> str:
    """Return the reason why a URL cannot be used now; empty if its HTTP status is acceptable.

    A server that is slow to respond can be used: a proxy may have to fetch the file first.
    """
    try:
        answer = httpx2.head(
            url, timeout=PROBE_TIMEOUT, follow_redirects=True, verify=tls_context()
        )
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as e:
        return "" if isinstance(e, httpx2.ReadTimeout) else why_unreachable(e)
    return f"HTTP {answer.status_code}" if answer.status_code >= refused else ""


def why_unreachable(error: Exception) -> str:
    """Return the reason why a server does not respond, in a few words without credentials."""
    if isinstance(error, httpx2.TimeoutException):
        return "no response in time"
    for cause in causes(error):
        if isinstance(cause, socket.gaierror):
            return "unknown host name"
        if isinstance(cause, ConnectionRefusedError):
            return "it refuses connections"
    return redact(str(error)) or type(error).__name__


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it was raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _context_from(name: str, path: Path) -> ssl.SSLContext:
    try:
        if path.is_dir():  # REQUESTS_CA_BUNDLE may name a folder
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except OSError as e:  # includes ssl.SSLError
        problem = f"{name} names {path}, which holds no certificates: {e}"
        raise FetchError(problem, "correct or unset it") from None


class _Credentials(httpx2.Auth):
    """Basic authentication by the URL's user name and password, else by those of netrc."""

    def __init__(self) -> None:
        self._netrc: netrc.netrc | None = None
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError, UsageError):
            self._netrc = netrc.netrc(os.environ.get("NETRC") or str(expand_home("~/.netrc")))

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        user, password = request.url.username, request.url.password
        if not user and self._netrc is not None:
            login = self._netrc.authenticators(request.url.host)
            if login is not None:
                user, password = login[0], login[2] or ""
        if user and "Authorization" not in request.headers:
            yield next(httpx2.BasicAuth(user, password).auth_flow(request))
        else:
            yield request


class _Client(httpx2.Client):
    """Raises httpx2.InvalidURL for every host name that cannot be one.

    httpx2 and the resolver raise other exceptions, also for an address to which a server redirects.
    """

    def build_request(self, *args: Any, **options: Any) -> httpx2.Request:
        with _invalid_host():
            return super().build_request(*args, **options)

    def send(self, *args: Any, **options: Any) -> httpx2.Response:
        with _invalid_host():
            return super().send(*args, **options)


@contextlib.contextmanager
def _invalid_host() -> Iterator[None]:
    try:
        yield
    except UnicodeError as e:  # also idna.IDNAError
        raise httpx2.InvalidURL(f"not a host name: {e}") from None


def make_client(connections: int = 16) -> httpx2.Client:
    """Return a client with keep-alive, redirects, netrc, and proxies from the environment.

    It asks for files without compression, so that their bytes are those on the server.

    Args:
        connections: the largest number of connections.

    Raises:
        FetchError: see :func:`tls_context`.
    """
    return _Client(
        timeout=TIMEOUT,
        follow_redirects=True,
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": f"builder/{__version__}", "Accept-Encoding": "identity"},
        auth=_Credentials(),
        verify=tls_context(),
    )
