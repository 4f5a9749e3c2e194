"""Fetches the archives of locked packages: local files where possible, else parallel, resumed
downloads.

Packages are verified against the hash in the lock, so they can come from any source.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from builder.core.errors import HashMismatch
from builder.core.model import FIND_LINKS, Fetched, LockedPackage
from builder.core.parallel import in_parallel
from builder.core.progress import working
from builder.core.store.files import space_errors
from builder.core.store.temporary import claimed
from builder.core.workspace import Workspace
from builder.formats.net.findlinks import FindLinks
from builder.formats.net.urlvariables import NO_VARIABLES, UrlVariables
from builder.lock.inputs import Inputs
from builder.lock.sourcerecords import stays_inside

from .places import LocalFile, NotAvailable, Places, Url, not_found
from .verify import Verifier

if TYPE_CHECKING:  # httpx2 is slow to import, and not needed if all packages are on this machine
    from builder.formats.net.download import PartialFile

    from .download import Downloader

log = logging.getLogger(__name__)

#: Files that are verified, or downloaded, at the same time.
_JOBS = 8


def fetch_packages(
    packages: Sequence[LockedPackage],
    work: Workspace,
    *,
    find_links: Sequence[str] = (),
    variables: UrlVariables = NO_VARIABLES,
    places: Mapping[str, Sequence[str]] | None = None,
) -> list[Fetched]:
    """Return the archives of locked packages, in the given order.

    Files of this machine that the lock, the recipe or pip's settings name (``file:`` URLs,
    find-links folders) are verified and used in place. Files in a folder of BUILDER_MIRRORS are
    linked or copied into the store, and everything else is downloaded into it. An interrupted
    download is resumed by the next call.

    Args:
        packages: the locked packages.
        find_links: folders and pages with wheels, as pip's ``--find-links``.
        variables: those that URLs of the packages may contain; by default none is replaced.
        places: the URLs to try, in order, for the URL of a package; None: that URL.

    Raises:
        HashMismatch: a place returned content twice that does not match the lock; it was deleted.
        FetchError: no place has a package, or access is denied, or no host can be reached, or
            builder is offline.
        SpaceError: the disk is full.
    """
    links = FindLinks(find_links)
    fetcher = _Fetcher(work, Places(work.settings, links, variables, places or {}))
    local = fetcher.find_local(packages)
    missing = [package for package, fetched in zip(packages, local, strict=True) if fetched is None]
    log.info("packages: %d are here, %d are downloaded", len(local) - len(missing), len(missing))
    downloaded = iter(fetcher.download(missing))
    return [fetched or next(downloaded) for fetched in local]


def fetch_for(inputs: Inputs, packages: Sequence[LockedPackage], work: Workspace) -> list[Fetched]:
    """Return archives for a target, also from the find-links of its recipe and environment.

    A wheel of the project has its path there in its URL. URLs get the variables that these files
    name. Raises as :func:`fetch_packages`.
    """
    local = [p.url.removeprefix(FIND_LINKS) for p in packages if p.url.startswith(FIND_LINKS)]
    folders = filter(stays_inside, {unquote(path).rpartition("/")[0] for path in local})
    own = [str(inputs.recipe.root / folder) for folder in sorted(folders)]
    links, variables = (*inputs.find_links, *own), inputs.url_variables
    return fetch_packages(packages, work, find_links=links, variables=variables)


class _Fetcher:
    """One call of :func:`fetch_packages`."""

    def __init__(self, work: Workspace, places: Places) -> None:
        self._work = work
        self._places = places
        self._verifier = Verifier(work.store)
        self._unreachable: set[str] = set()
        self._stop = threading.Event()

    # local files

    def find_local(self, packages: Sequence[LockedPackage]) -> list[Fetched | None]:
        """Return for each package its verified local file; None: it has to be downloaded."""
        if all(self._verifier.was_seen(package) for package in packages):
            # Probably nothing has to be hashed: threads would cost more than they save.
            return [self._local(package) for package in packages]
        return [found for _, found in in_parallel(self._local, packages, _JOBS)]

    def _local(self, package: LockedPackage) -> Fetched | None:
        """Return the package if it is in the store, or in a local place before the first URL."""
        digest = self._verifier.digest(package)
        blob = self._work.store.get(digest) if digest else None
        if blob is not None:
            return _fetched(package, blob)
        for place in self._places.of(package, None):
            if isinstance(place, LocalFile):
                if self._verifier.matches(place.path, package):
                    return self._used(package, place)
            elif not self._work.settings.offline:
                return None
        return None

    # downloads

    def download(self, packages: Sequence[LockedPackage]) -> list[Fetched]:
        """Download packages and return them in their order. The first failure stops all downloads."""
        if not packages:
            return []
        from builder.formats.net.http import make_client

        from .download import TASK, Downloader

        with working(self._work.reporter, TASK), make_client(_JOBS) as client:
            downloader = Downloader(client, len(packages), self._work.reporter, self._stop)

            def fetch(package: LockedPackage) -> Fetched:
                found = self._fetch(package, downloader)
                downloader.finished()
                return found

            return [fetched for _, fetched in in_parallel(fetch, packages, _JOBS, self._stop)]

    def _fetch(self, package: LockedPackage, downloader: Downloader) -> Fetched:
        """Return the package from its first location, or from a build that downloads it now."""
        with self._work.store.lock(f"fetch {package.key}"):
            found = self._local(package)
            if found is not None:
                return found
            tried: list[str] = []
            mismatch: HashMismatch | None = None
            for place in self._places.of(package, downloader.client):
                try:
                    if isinstance(place, LocalFile):
                        return self._from_disk(package, place)
                    return self._from_web(package, place, downloader)
                except HashMismatch as e:
                    mismatch = e
                except NotAvailable as e:
                    tried.append(f"{place}: {e}")
            raise mismatch or not_found(
                package, tried, self._places.variables, offline=self._work.settings.offline
            )

    def _from_disk(self, package: LockedPackage, place: LocalFile) -> Fetched:
        if self._verifier.matches(place.path, package):
            return self._used(package, place)
        if not place.path.is_file():
            raise NotAvailable("no such file")
        raise HashMismatch(
            f"{package.filename}: {place} does not match the hash in the lock ({package.key})",
            "restore the locked file, or lock again: builder lock",
        )

    def _used(self, package: LockedPackage, place: LocalFile) -> Fetched:
        """Return a verified file as an archive; one of a mirror as a blob of the store."""
        digest = self._verifier.digest(package)
        if not place.is_mirror or digest is None:
            return _fetched(package, place.path)
        log.info("%s: stored from %s", package.filename, place)
        return _fetched(package, self._work.store.take(place.path, digest))

    def _from_web(self, package: LockedPackage, place: Url, downloader: Downloader) -> Fetched:
        """Download a package; content that does not match is deleted and requested once more."""
        from .download import open_partial, received_key

        self._check_reachable(place)
        store, received = self._work.store, ""
        partial = store.folders.partial / package.key.replace(":", "-")
        with space_errors(store.root), claimed(partial) as path:
            for _ in range(2):
                with open_partial(path, package) as part:
                    self._stream(package, place, downloader, part)
                received = received_key(part, package)
                if received == package.key:
                    digest = part.digest()
                    stored = store.adopt(path, digest)
                    self._verifier.record_digest(package, digest)
                    log.info("%s: downloaded from %s", package.filename, place)
                    return _fetched(package, stored)
                path.unlink(missing_ok=True)
                was = f"{place} returned {received}, the lock has {package.key}"
                self._work.reporter.warn(f"{package.filename}: {was}; deleted")
        raise HashMismatch(
            f"{package.filename}: {place} returned {received} twice, the lock has {package.key}; "
            "the download was deleted",
            "the file was replaced after locking, or a proxy changes it: lock again, or use another mirror",
        )

    def _check_reachable(self, place: Url) -> None:
        if self._work.settings.offline:
            raise NotAvailable("offline")
        if not place.url.startswith(("http://", "https://")):
            raise NotAvailable("not an http, https or file URL")
        if place.host in self._unreachable:
            raise NotAvailable("the host does not answer")

    def _stream(
        self, package: LockedPackage, place: Url, downloader: Downloader, part: PartialFile
    ) -> None:
        """Download into the partial file; a failing server counts as one without the package."""
        import httpx2

        from builder.formats.net.http import why_unreachable

        try:
            downloader.download(package, place.url, part)
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            if isinstance(e, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
                self._unreachable.add(place.host)
            raise NotAvailable(why_unreachable(e)) from None


def _fetched(package: LockedPackage, path: Path) -> Fetched:
    return Fetched(package, path, path.stat().st_size)
