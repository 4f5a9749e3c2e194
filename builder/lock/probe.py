"""Whether a channel, index or registry answers."""

from __future__ import annotations

import httpx

from builder.net.http import tls_context, why_unreachable

#: Seconds within which a server has to answer.
PROBE_TIMEOUT = 5.0


def probe(url: str, refused: int = 400) -> str:
    """Return the reason why a URL cannot be used now; empty if its HTTP status is acceptable."""
    try:
        answer = httpx.head(url, timeout=PROBE_TIMEOUT, follow_redirects=True, verify=tls_context())
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as e:
        return why_unreachable(e)
    return f"HTTP {answer.status_code}" if answer.status_code >= refused else ""
