"""What a user reads when a package cannot be fetched, and what they can do about it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from builder.core.errors import FetchError
from builder.core.model import FIND_LINKS, WHEELS, LockedPackage
from builder.core.redact import redact
from builder.formats.net.urlvariables import UrlVariables, variables_in

_MIRRORS = "BUILDER_MIRRORS='FROM=TO'"


class NotAvailable(Exception):
    """A place does not have the package, or is not available now; the text is the reason."""


def not_found(
    package: LockedPackage, tried: Sequence[str], variables: UrlVariables, *, offline: bool
) -> FetchError:
    """Return the error for a package that none of its places has.

    Args:
        package: the package.
        tried: for each place its address and why it did not help.
        variables: those that the package's URL may contain.
        offline: whether builder runs offline.
    """
    nowhere = "no find-links folder, page or index has it"
    if package.url.startswith(WHEELS):
        nowhere = (
            "builder built its wheel, and neither the cache, wheels/ nor a find-links folder has it"
        )
    reasons = "; ".join(tried) or nowhere
    hint = _hint(package, reasons, variables, offline)
    return FetchError(f"{package.name} {package.version} could not be fetched: {reasons}", hint)


def _hint(package: LockedPackage, reasons: str, variables: UrlVariables, offline: bool) -> str:
    if package.url.startswith(FIND_LINKS):
        return (
            "set PIP_FIND_LINKS to the folder that holds the file, or add the folder to the recipe "
            "(pip: {find_links: [...]}), or lock again: builder lock"
        )
    if package.url.startswith(WHEELS):
        return (
            f"copy {package.filename} into the project's folder wheels/ from the machine that made the lock, "
            f"or build it again: builder lock --update {package.name}"
        )
    if offline:
        return (
            f"run once online to fill the cache, or set a mirror: {_MIRRORS} (TO may be a folder)"
        )
    names = sorted(variables_in(package.url))
    if missing := next(variables.missing(package.url), None):
        return (
            f"the lock's URL names the variable {missing}, which is replaced only where the recipe or the "
            "environment file names it in a channel or index that begins like the URL: add that channel "
            "or index there"
        )
    if unset := next((name for name in names if not os.environ.get(name)), None):
        return (
            f"the URL needs the environment variable {unset}, which is not set: export {unset}=..."
        )
    if "CERTIFICATE" in reasons:
        return (
            "set SSL_CERT_FILE, or cert in pip's configuration, to the certificate of the authority"
        )
    if "HTTP 404" in reasons or "HTTP 410" in reasons:
        return f"the package was removed: lock again, or set a mirror that still has it: {_MIRRORS}"
    if "HTTP 401" in reasons or "HTTP 403" in reasons:
        return "put the user name and password for this host into ~/.netrc"
    return f"check the network, or set a mirror: {_MIRRORS} (docs/offline.md)"


def first_line(error: Exception) -> str:
    """Return the first line of an exception's text, without credentials."""
    lines = str(error).splitlines()
    text = lines[0] if lines else "no answer"
    return " ".join(redact(word) for word in text.split())
