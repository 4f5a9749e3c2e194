"""One way of making HTTP clients: certificates, time limits, no secrets in messages."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx

from builder import __version__

#: Seconds: to connect, and between two pieces of an answer.
TIMEOUT = httpx.Timeout(30.0, connect=10.0)


def tls_context() -> ssl.SSLContext:
    """Certificates as this machine is set up: SSL_CERT_FILE, pip's, else the system's."""
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
        path = os.environ.get(name)
        if path and Path(path).is_file():
            return ssl.create_default_context(cafile=path)
    return ssl.create_default_context()


def make_client(connections: int = 16) -> httpx.Client:
    """A client with keep-alive, redirects, netrc and proxies from the environment."""
    return httpx.Client(
        timeout=TIMEOUT,
        follow_redirects=True,
        limits=httpx.Limits(max_connections=connections),
        headers={"User-Agent": f"builder/{__version__}"},
        verify=tls_context(),
    )


def shown(url: str) -> str:
    """A URL without user, password, query and token paths (``/t/<token>/`` of conda channels): fit for a message."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    netloc = f"{host}:{parts.port}" if parts.port else host
    path = parts.path
    if path.startswith("/t/") and path.count("/") > 2:
        path = "/t/***/" + path.split("/", 3)[3]
    return urlunsplit((parts.scheme, netloc, path, "", ""))
