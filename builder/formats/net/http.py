"""The HTTP client: certificates, proxies, netrc, time limits."""

from __future__ import annotations

import contextlib
import netrc
import os
import socket
import ssl
import threading
from collections.abc import Generator, Iterator

import httpx2

from builder.core.errors import UsageError
from builder.core.redact import redact
from builder.core.settings import expand_home
from builder.core.store.reading import open_ordinary
from builder.core.version import __version__

from .pace import PacedBackend
from .proxies import Proxy, proxy_for
from .trust import tls_context

#: Seconds to connect (10), and between two parts of an answer (30).
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)


def probe(url: str, refused: int = 400, connect_s: float = 10.0, registry: str = "") -> str:
    """Return the reason why a URL cannot be used now; empty if its HTTP status is acceptable.

    A server that is slow to respond can be used: a proxy may have to fetch the file first.

    Args:
        url: the URL.
        refused: the first HTTP status that is not acceptable.
        connect_s: seconds to connect.
        registry: see :func:`make_client`.
    """
    timeout = httpx2.Timeout(5.0, connect=connect_s)
    try:
        with make_client(1, registry=registry, timeout=timeout) as client:
            answer = client.head(url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as e:
        return "" if isinstance(e, httpx2.ReadTimeout) else why_unreachable(e)
    return f"HTTP {answer.status_code}" if answer.status_code >= refused else ""


def why_unreachable(error: Exception) -> str:
    """Return the reason why a server does not respond, in a few words without credentials.

    If it was asked through a proxy, the reason names the proxy.
    """
    found = map(_reason, causes(error))
    reason = next(filter(None, found), "") or redact(str(error)) or type(error).__name__
    proxy = "".join(getattr(error, "__notes__", ()))
    if proxy and "certificate" not in reason and not reason.startswith("TLS"):
        return f"{proxy}: {reason}"
    return f"{reason}, through {proxy}" if proxy else reason  # TLS with the server, or with a proxy


def _reason(error: BaseException) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "no response in time"
    if isinstance(error, httpx2.ProxyError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, socket.gaierror):
        return "unknown host name"
    if isinstance(error, httpx2.DecodingError):
        return "its answer is encoded wrongly"
    broken = isinstance(error, httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError)
    if broken and "_ALERT_" not in str(error):  # whoever ends TLS says why
        return f"the connection broke ({type(error).__name__})"
    return "it refuses connections" if isinstance(error, ConnectionRefusedError) else ""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it was raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


class _Credentials(httpx2.Auth):
    """Basic authentication by the URL's user name and password, else by those of netrc."""

    def __init__(self) -> None:
        self._netrc: netrc.netrc | None = None
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError, UsageError):
            file = expand_home(os.environ.get("NETRC") or "~/.netrc")
            with open_ordinary(file, links=True):  # or OSError: netrc would wait for a pipe
                self._netrc = netrc.netrc(str(file))

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


class _Routes(httpx2.BaseTransport):
    """Sends each request directly, or through the proxy for its host.

    An error of a request through a proxy has a note that names the proxy.
    """

    def __init__(self, tls: ssl.SSLContext, limits: httpx2.Limits) -> None:
        self._tls, self._limits = tls, limits
        self._lock = threading.Lock()
        self._transports: dict[Proxy | None, httpx2.HTTPTransport] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        proxy = proxy_for(str(request.url))
        try:
            with self._lock:
                if proxy not in self._transports:
                    url = proxy.url if proxy else None
                    route = httpx2.HTTPTransport(verify=self._tls, limits=self._limits, proxy=url)
                    route._pool._network_backend = PacedBackend()  # httpx2 2.16 has no parameter
                    self._transports[proxy] = route
            return self._transports[proxy].handle_request(request)
        except (UnicodeError, httpx2.InvalidURL) as e:  # "a..b" (httpx2 2.16), or a proxy's URL
            error: httpx2.TransportError = httpx2.ConnectError(f"not a host name: {e}")
        except httpx2.TransportError as e:
            error = e
        if proxy:
            error.add_note(str(proxy))
        raise error

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()


def make_client(
    connections: int = 16,
    *,
    registry: str = "",
    timeout: httpx2.Timeout = TIMEOUT,
) -> httpx2.Client:
    """Return a client with keep-alive, proxies (:func:`.proxies.proxy_for`), and redirects.

    It asks for files without compression, so that their bytes are those on the server.

    Args:
        connections: the largest number of connections.
        registry: ``host[:port]``, if it is for a registry: then it follows no redirect, and has no
            credentials. Otherwise those of the URL, else of netrc.
        timeout: for its requests.

    Raises:
        FetchError: see :func:`.trust.tls_context`.
    """
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx2.Client(
        timeout=timeout,
        follow_redirects=not registry,
        headers={"User-Agent": f"builder/{__version__}", "Accept-Encoding": "identity"},
        auth=None if registry else _Credentials(),
        transport=_Routes(tls_context(registry), limits),
        trust_env=False,
    )
