"""What a user reads when a package cannot be fetched, and what they can do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from builder.errors import FetchError
from builder.model import DEBIAN_CHANNEL, FIND_LINKS, LockedPackage
from builder.redact import redact

_MIRRORS = "BUILDER_MIRRORS='FROM=TO'"


class NotAvailable(Exception):
    """A place does not have the package, or is not available now; the text is the reason."""


def not_found(package: LockedPackage, tried: Sequence[str], offline: bool) -> FetchError:
    """The error for a package that none of its places has.

    Args:
        package: the package.
        tried: for each place its address and why it did not help.
        offline: whether builder runs offline.
    """
    reasons = "; ".join(tried) or "no find-links folder, page or index has it"
    return FetchError(
        f"{package.name} {package.version} could not be fetched: {reasons}", _hint(package, reasons, offline)
    )


def _hint(package: LockedPackage, reasons: str, offline: bool) -> str:
    if package.url.startswith(DEBIAN_CHANNEL):
        return (
            "the Debian mirror has other versions now: lock again (builder lock), "
            "or copy the channel of the machine that made the lock (docs/offline.md)"
        )
    if package.url.startswith(FIND_LINKS):
        return (
            "set PIP_FIND_LINKS to the folder that holds the file, or add the folder to the recipe "
            "(pip: {find_links: [...]}), or lock again: builder lock"
        )
    if offline:
        return f"run once online to fill the cache, or set a mirror: {_MIRRORS} (TO may be a folder)"
    unset = re.search(r"\$\{?(\w+)", os.path.expandvars(package.url))
    if unset:
        return f"the URL needs the environment variable {unset[1]}, which is not set: export {unset[1]}=..."
    if "CERTIFICATE" in reasons:
        return "set SSL_CERT_FILE, or cert in pip's configuration, to the certificate of the authority"
    if "HTTP 404" in reasons or "HTTP 410" in reasons:
        return f"the package was removed: lock again, or set a mirror that still has it: {_MIRRORS}"
    if "HTTP 401" in reasons or "HTTP 403" in reasons:
        return "put the user name and password for this host into ~/.netrc"
    return f"check the network, or set a mirror: {_MIRRORS} (docs/offline.md)"


def first_line(error: Exception) -> str:
    """The first line of an exception's text, without credentials."""
    lines = str(error).splitlines()
    text = lines[0] if lines else "no answer"
    return " ".join(redact(word) for word in text.split())
