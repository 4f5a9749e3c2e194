"""What a user reads when a package cannot be fetched, and what they can do about it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from builder.core.datafiles import table
from builder.core.errors import FetchError
from builder.core.model import FIND_LINKS, WHEELS, LockedPackage
from builder.formats.net.urlvariables import UrlVariables, variables_in


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
    """Return the hint of the first case of hints.yaml that applies."""
    from builder.formats.net.trust import network_hint

    unnamed = next(variables.missing(package.url), None)
    unset = [name for name in sorted(variables_in(package.url)) if not os.environ.get(name)]
    cases = {
        "find_links": package.url.startswith(FIND_LINKS),
        "wheel": package.url.startswith(WHEELS),
        "offline": offline,
        "unnamed": unnamed is not None,
        "unset": bool(unset),
        "removed": "HTTP 404" in reasons or "HTTP 410" in reasons,
        "denied": "HTTP 401" in reasons or "HTTP 403" in reasons,
        "other": True,
    }
    case = next(name for name, applies in cases.items() if applies)
    variable = unnamed or next(iter(unset), "")
    hint: str = table(__file__, "hints.yaml")[case]
    hint = hint.format(file=package.filename, name=package.name, variable=variable)
    return network_hint(reasons, hint)
