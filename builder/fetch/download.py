"""One download that can be resumed: the partial file, the requests, and the pauses between them."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from types import TracebackType

import httpx

from builder.fetch.failure import NotAvailable
from builder.model import LockedPackage
from builder.parallel import Stopped
from builder.progress import Reporter
from builder.store.files import CHUNK, require_space, space_errors

#: Failed attempts in a row for one URL that add no bytes, before the next place is tried.
TRIES = 4
#: The name of the task for the reporter.
TASK = "packages"
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class Partial:
    """The part of a package that was downloaded so far: a file, and the hashes of its content.

    A context manager. The caller holds the lock of the package, so no other process writes the file.
    """

    def __init__(self, path: Path, package: LockedPackage) -> None:
        self.path = path
        self._package = package
        with space_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
        self._reset()
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            self._add(chunk)

    def _reset(self) -> None:
        self.size = 0
        """Bytes in the file."""
        self.sha256 = hashlib.sha256()
        self._md5 = None if self._package.sha256 else hashlib.md5(usedforsecurity=False)

    def _add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.sha256.update(chunk)
        if self._md5 is not None:
            self._md5.update(chunk)

    @property
    def key(self) -> str:
        """The hash of the file, in the form of :attr:`LockedPackage.key`."""
        if self._md5 is not None:
            return f"md5:{self._md5.hexdigest()}"
        return f"sha256:{self.sha256.hexdigest()}"

    def matches(self) -> bool:
        """Whether the file is the complete package."""
        return self.key == self._package.key

    def restart(self) -> None:
        """Discards the content."""
        self._file.truncate(0)
        self._reset()

    def write(self, chunk: bytes) -> None:
        """Appends bytes. Raises SpaceError."""
        with space_errors(self.path.parent):
            done = 0
            while done < len(chunk):
                done += self._file.write(memoryview(chunk)[done:])
        self._add(chunk)

    def __enter__(self) -> Partial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class Downloader:
    """Downloads packages with one HTTP client. Safe for several threads."""

    def __init__(self, client: httpx.Client, reporter: Reporter, stop: threading.Event) -> None:
        self._client = client
        self._reporter = reporter
        self._stop = stop

    def download(self, package: LockedPackage, url: str, part: Partial) -> None:
        """Streams a URL into a partial file, beginning where the file ends.

        Raises:
            NotAvailable: the server answers, and does not have the file.
            httpx.HTTPError: the server cannot be reached, or fails again and again.
            Stopped: the stop flag was set.
            SpaceError: the disk is full.
        """
        tries = 0
        while True:
            if self._stop.is_set():
                raise Stopped
            have = part.size
            headers = {"Range": f"bytes={have}-"} if have else {}
            try:
                with self._client.stream("GET", url, headers=headers) as answer:
                    if answer.status_code == 416 and have:
                        # The file is complete already, or longer than the server's.
                        if part.matches():
                            return
                        part.restart()
                        continue
                    if answer.status_code in _TRANSIENT:
                        raise httpx.HTTPStatusError(_status(answer), request=answer.request, response=answer)
                    if not answer.is_success:
                        raise NotAvailable(_status(answer))
                    self._receive(package, answer, part)
                    return
            except (httpx.TransportError, httpx.HTTPStatusError) as e:
                tries = 1 if part.size > have else tries + 1
                if _is_final(e, tries):
                    raise
                self._stop.wait(pause(e, tries))

    def _receive(self, package: LockedPackage, answer: httpx.Response, part: Partial) -> None:
        start = None
        if answer.status_code == 206:
            start = re.match(r"bytes (\d+)-", answer.headers.get("content-range", ""))
        if start is None or int(start[1]) != part.size:
            if part.size:
                part.restart()
            if start is not None and int(start[1]):
                raise httpx.ReadError("the server returned another range than requested")
        length = answer.headers.get("content-length", "")
        if length.isdigit():
            require_space(part.path.parent, int(length), f"the download of {package.filename}")
        for chunk in answer.iter_raw():
            if self._stop.is_set():
                raise Stopped
            part.write(chunk)
            self._reporter.advance(TASK, len(chunk))


def _is_final(error: Exception, tries: int) -> bool:
    """Whether another attempt is useless."""
    if isinstance(error, httpx.UnsupportedProtocol) or "CERTIFICATE" in str(error):
        return True
    is_unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    return tries >= (2 if is_unreachable else TRIES)


def _status(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code} {answer.reason_phrase}".rstrip()


def pause(error: Exception, tries: int) -> float:
    """Seconds before the next attempt: the server's ``Retry-After`` (at most 60), else 0.5, 1, 2, ..."""
    response = error.response if isinstance(error, httpx.HTTPStatusError) else None
    retry_after = response.headers.get("retry-after", "") if response is not None else ""
    return min(60.0, float(retry_after)) if retry_after.isdigit() else 0.25 * 2.0**tries
