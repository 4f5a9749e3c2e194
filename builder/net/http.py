"""One way of making HTTP clients: certificates, time limits, no secrets in messages."""

from __future__ import annotations

import netrc
import os
import ssl
from collections.abc import Generator
from pathlib import Path

import httpx

from builder.errors import FetchError
from builder.net.pipconfig import pip_configuration
from builder.version import __version__

#: Seconds: to connect, and between two pieces of an answer.
TIMEOUT = httpx.Timeout(30.0, connect=10.0)


def tls_context() -> ssl.SSLContext:
    """Certificates as this machine is set up: SSL_CERT_FILE, PIP_CERT, REQUESTS_CA_BUNDLE, pip's ``cert``, else the system's.

    Raises:
        FetchError: one of these names what is no file of certificates.
    """
    named = [(name, os.environ.get(name)) for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")]
    for name, value in (*named, ("pip's configuration (cert)", pip_configuration().cert)):
        if not value:
            continue
        path = Path(value).expanduser()
        try:
            folder = path.is_dir()  # REQUESTS_CA_BUNDLE may be one
            return ssl.create_default_context(
                cafile=None if folder else str(path), capath=str(path) if folder else None
            )
        except OSError as e:  # ssl.SSLError is one too
            raise FetchError(
                f"{name} names {path}, which holds no certificates: {e}", "correct or unset it"
            ) from None
    return ssl.create_default_context()


class _Credentials(httpx.Auth):
    """User and password of the URL, else those that netrc has for its host (``NETRC``, else ``~/.netrc``)."""

    def __init__(self) -> None:
        self._netrc: netrc.netrc | None = None
        try:
            self._netrc = netrc.netrc(os.environ.get("NETRC") or str(Path("~/.netrc").expanduser()))
        except (OSError, netrc.NetrcParseError):
            pass

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        user, password = request.url.username, request.url.password
        if not user and self._netrc is not None and (known := self._netrc.authenticators(request.url.host)):
            user, password = known[0], known[2] or ""
        if user and "Authorization" not in request.headers:
            yield next(httpx.BasicAuth(user, password).auth_flow(request))
        else:
            yield request


def make_client(connections: int = 16) -> httpx.Client:
    """A client with keep-alive, redirects, netrc and proxies from the environment; files come as they lie on the server."""
    return httpx.Client(
        timeout=TIMEOUT,
        follow_redirects=True,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": f"builder/{__version__}", "Accept-Encoding": "identity"},
        auth=_Credentials(),
        verify=tls_context(),
    )
