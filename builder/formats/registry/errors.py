"""What to do about a registry's response, or a failed connection: the hints of errors."""

from __future__ import annotations

from builder.core.datafiles import table
from builder.core.errors import RegistryError
from builder.formats.net.http import why_unreachable
from builder.formats.net.proxies import is_loopback
from builder.formats.net.trust import network_hint

from .answer import Answer
from .credentials import Credentials

LOGIN = (
    "log in (docker login, podman login), or set REGISTRY_USER and REGISTRY_PASSWORD, "
    "which are not sent to the registry of a base"
)


class ArtifactRefused(RegistryError):
    """The registry accepts container images only, no other artifacts."""


def refusal_hint(answer: Answer, host: str, used: Credentials, *, elsewhere: bool) -> str:
    """Return the hint for a response that refuses a request.

    Args:
        answer: the response.
        host: the registry.
        used: the credentials that were sent.
        elsewhere: another host sent the response.
    """
    hints: dict[str | int, str] = table(__file__, "hints.yaml")
    status, codes = answer.status, answer.codes()
    details = " ".join(f"{code} {message}" for code, message in answer.errors()).lower()
    if status == 413 or "quota" in details or "SIZE_LIMIT_EXCEEDED" in codes:
        return hints["too large"]
    if status in (401, 403) and elsewhere:
        return hints["elsewhere"]
    if status in (401, 403) or {"UNAUTHORIZED", "DENIED"} & set(codes):
        return credentials_hint(host, used)
    keys = (*codes, status, status // 100, "UNSUPPORTED" if codes else "other")
    return next(hints[key] for key in keys if key in hints)


def credentials_hint(host: str, used: Credentials) -> str:
    """Return the hint for refused or missing credentials; it names their source only."""
    if not used:
        return f"no credentials for {host} were found: {LOGIN}"
    reason = "they are wrong, have expired, or lack the permission"
    return f"the credentials of {used.source} were used: {reason}; {LOGIN}"


def connection_text(error: Exception, host: str) -> tuple[str, str]:
    """Return the reason why a connection failed, and a hint.

    Args:
        error: the error of httpx2.
        host: the registry.
    """
    hints: dict[str, str] = table(__file__, "hints.yaml")
    reason = why_unreachable(error)
    if reason.startswith("TLS failed"):
        if is_loopback(host) and "alert" not in reason:  # plain http failed before
            return "it speaks neither http nor https", hints["starting"]
        return reason, network_hint(reason, hints["TLS failed"])
    return reason, network_hint(reason, hints.get(reason, hints["broken"]))
