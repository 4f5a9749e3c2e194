"""What to do about a registry's response, or a failed connection: the hints of errors."""

from __future__ import annotations

import socket
import ssl

import httpx

from builder.core.datafiles import table
from builder.core.errors import RegistryError
from builder.formats.net.http import causes

from .answer import Answer
from .credentials import Credentials
from .tls import is_loopback

LOGIN = "log in (docker login, podman login), or set REGISTRY_USER and REGISTRY_PASSWORD"
RUN_AGAIN = "run the same command again: finished blobs are not transferred again"


class ArtifactRefused(RegistryError):
    """The registry accepts container images only, no other artifacts."""


_CERTIFICATE = (
    "name the authority's certificate in SSL_CERT_FILE, or in certs.d (docs/registries.md)"
)
_PLAIN_HTTP = "a registry that uses plain http must be on this machine (docs/registries.md)"


def refusal_hint(answer: Answer, host: str, used: Credentials) -> str:
    """Return the hint for a response that refuses a request.

    Args:
        answer: the response.
        host: the registry.
        used: the credentials that were sent.
    """
    status, codes = answer.status, answer.codes()
    details = " ".join(f"{code} {message}" for code, message in answer.errors()).lower()
    if status == 413 or "quota" in details or "SIZE_LIMIT_EXCEEDED" in codes:
        return (
            "the registry does not accept blobs of this size, or the quota is used up: "
            "ask its owner, or delete old images there"
        )
    if status in (401, 403) or {"UNAUTHORIZED", "DENIED"} & set(codes):
        return credentials_hint(host, used)
    hints: dict[str | int, str] = table(__file__, "hints.yaml")
    known = [hints[key] for key in (*codes, status, status // 100) if key in hints]
    if codes:
        known.append(hints["UNSUPPORTED"])
    return known[0] if known else "is this the address of a registry?"


def credentials_hint(host: str, used: Credentials) -> str:
    """Return the hint for refused or missing credentials; it names their source only."""
    if not used:
        return f"no credentials for {host} were found: {LOGIN}"
    reason = "they are wrong, have expired, or lack the permission"
    return f"the credentials of {used.source} were used: {reason}; {LOGIN}"


def connection_text(error: Exception, host: str) -> tuple[str, str]:
    """Return the reason why a connection failed, and a hint.

    Args:
        error: the error of httpx.
        host: the registry.
    """
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}", _CERTIFICATE
        if isinstance(cause, ssl.SSLError):
            if is_loopback(host):  # it did not answer over plain http either
                hint = f"if the registry is starting, {RUN_AGAIN}"
                return "it speaks neither http nor https", hint
            return "TLS failed", _PLAIN_HTTP
        if isinstance(cause, socket.gaierror):
            return "unknown host name", "correct the host name, or check the network"
        if isinstance(cause, ConnectionRefusedError):
            return "it refuses connections", "is the registry running, and is the port right?"
    if isinstance(error, httpx.TimeoutException):
        return "no response in time", f"check the network and the proxy settings, then {RUN_AGAIN}"
    return f"the connection broke ({type(error).__name__})", RUN_AGAIN
