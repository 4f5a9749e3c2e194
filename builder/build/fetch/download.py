"""Downloads one package from one URL: the requests, and the pauses between them.

:mod:`builder.formats.net.download` resumes the partial file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from builder.core.model import LockedPackage
from builder.core.parallel import Stopped
from builder.core.progress import Reporter
from builder.core.store.files import require_space
from builder.formats.net.download import PartialFile, body_from, range_header, resume

from .places import NotAvailable

#: Failed attempts in a row for one URL that add no bytes, before the next place is tried.
TRIES = 4
#: The name of the task for the reporter.
TASK = "downloading packages"
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


def open_partial(path: Path, package: LockedPackage) -> PartialFile:
    """Open what was downloaded of a package so far. The caller has claimed the file."""
    return PartialFile(path, ("sha256",) if package.sha256 else ("md5", "sha256"))


def received_key(part: PartialFile, package: LockedPackage) -> str:
    """Return the hash of a partial file, in the form of :attr:`LockedPackage.key`."""
    return part.digest("sha256" if package.sha256 else "md5")


@dataclass
class Downloader:
    """Downloads packages with one HTTP client. Safe for several threads."""

    client: httpx2.Client
    """Makes the requests."""
    count: int
    """The number of packages."""
    reporter: Reporter
    """Receives progress."""
    stop: threading.Event
    """Ends the downloads when it is set."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _finished: int = field(default=0, init=False)

    def finished(self) -> None:
        """Count a package that is on this machine now."""
        with self._lock:
            self._finished += 1
            self.reporter.doing(TASK, f"{self._finished} of {self.count} packages")

    def download(self, package: LockedPackage, url: str, part: PartialFile) -> None:
        """Stream a URL into a partial file, beginning where the file ends.

        Raises:
            NotAvailable: the server answers, and does not have the file.
            httpx2.HTTPError: the server cannot be reached, or fails again and again.
            Stopped: the stop flag was set.
            SpaceError: the disk is full.
        """

        def source(offset: int) -> Iterator[bytes]:
            return self._bytes(package, url, part, offset)

        resume(part, source, self._retry)

    def _bytes(
        self, package: LockedPackage, url: str, part: PartialFile, offset: int
    ) -> Iterator[bytes]:
        """Yield the bytes of a URL from ``offset`` on."""
        self._check_stop()
        with self.client.stream("GET", url, headers=range_header(offset)) as answer:
            # the file is complete, or longer than the server's
            if answer.status_code == 416 and offset:
                if received_key(part, package) != package.key:
                    part.restart()
                    yield from self._bytes(package, url, part, 0)
                return
            if answer.status_code in _TRANSIENT:
                raise httpx2.HTTPStatusError(
                    _status(answer), request=answer.request, response=answer
                )
            if not answer.is_success:
                raise NotAvailable(_status(answer))
            length = answer.headers.get("content-length", "")
            if length.isdecimal():
                require_space(part.path.parent, int(length), f"the download of {package.filename}")
            for data in body_from(answer, offset):
                yield data
                self.reporter.advance(TASK, len(data))
                self._check_stop()

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped

    def _retry(self, error: httpx2.HTTPError, failures: int) -> None:
        if _is_final(error, failures):
            raise error
        self.stop.wait(pause(error, failures))


def _is_final(error: Exception, tries: int) -> bool:
    """Return whether another attempt is useless."""
    if isinstance(error, httpx2.UnsupportedProtocol) or "CERTIFICATE" in str(error):
        return True
    is_unreachable = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return tries >= (2 if is_unreachable else TRIES)


def _status(answer: httpx2.Response) -> str:
    return f"HTTP {answer.status_code} {answer.reason_phrase}".rstrip()


def pause(error: Exception, tries: int) -> float:
    """Return seconds before the next attempt: ``Retry-After`` (at most 60), else 0.5, 1, 2, ..."""
    response = error.response if isinstance(error, httpx2.HTTPStatusError) else None
    retry_after = response.headers.get("retry-after", "") if response is not None else ""
    return min(60.0, float(retry_after)) if retry_after.isdecimal() else 0.25 * 2.0**tries
