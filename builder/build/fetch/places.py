"""Where a locked package may be, in the order in which the places are tried.

1. the mirrors of its URL (``BUILDER_MIRRORS``); a file in one that is a folder is stored in the cache,
   as a download is, because the variable may not be set at the next build,
2. its URL; the Python of a base image (``builder://base/...``) is made from its URL,
3. for wheels: files of the same name where find-links and the indexes of pip's configuration point.
   Wheels that builder built (``builder://wheels/...``) are in the store, or in the project's folder
   ``wheels/``, which :attr:`builder.lock.inputs.Inputs.find_links` adds.

And what a user reads when none has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.core.datafiles import table
from builder.core.errors import FetchError
from builder.core.model import BASE_PYTHON, FIND_LINKS, WHEELS, LockedPackage
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.formats.net.findlinks import FindLinks, as_path
from builder.formats.net.mirrors import mirrors_of
from builder.formats.net.urlvariables import UrlVariables, variables_in

if TYPE_CHECKING:
    import httpx2


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


@dataclass(frozen=True, slots=True)
class Url:
    """A URL where a package may be."""

    url: str
    """As it is requested; may contain credentials."""
    shown: str
    """For messages: without credentials."""

    def __str__(self) -> str:
        return self.shown

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine where a package may be."""

    path: Path
    is_mirror: bool = False
    """Whether BUILDER_MIRRORS names it. Other files are used in place."""

    def __str__(self) -> str:
        return str(self.path)


Place = LocalFile | Url


@dataclass(frozen=True)
class Places:
    """Finds the places of packages. Safe for several threads."""

    settings: Settings
    links: FindLinks
    variables: UrlVariables
    others: Mapping[str, Sequence[str]]

    def of(self, package: LockedPackage, client: httpx2.Client | None) -> Iterator[Place]:
        """Yield the places of a package, in order. A place need not have the package.

        Args:
            package: the package.
            client: reads find-links pages and indexes; None leaves these out.

        Raises:
            FetchError: the package is no Python of a base image, but its URL begins like one.
        """
        url = self.variables.expanded(package.url)
        for mirrored in mirrors_of(self.settings, url):
            yield _place(mirrored, redact(mirrored), is_mirror=True)
        yield from self._original(package, url)
        if package.manager == "pip":
            yield from map(LocalFile, self.links.local(package.filename))
            if client is not None and not self.settings.offline:
                for link in self.links.remote(package.filename, client):
                    yield Url(link, redact(link))

    def _original(self, package: LockedPackage, url: str) -> Iterator[Place]:
        if url.startswith(BASE_PYTHON):
            from .venv import write_base_python

            folder = CacheFolders(self.settings.cache).channels / "base"
            yield LocalFile(write_base_python(url, folder))  # made here
        elif url in self.others:
            for other in self.others[url]:
                yield _place(other, redact(other))
        elif not url.startswith((FIND_LINKS, WHEELS)):
            yield _place(url, redact(package.url))


def _place(url: str, shown: str, *, is_mirror: bool = False) -> Place:
    path = as_path(url)
    return Url(url, shown) if path is None else LocalFile(path, is_mirror)
