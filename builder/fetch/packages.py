"""Locked packages to verified archives on this machine's disk.

Places are tried in this order: the mirrors of the lock's URL (``BUILDER_MIRRORS``), the URL, and, for wheels, files of the same
name where pip's find-links and indexes point. Wherever it comes from, an archive is believed by its hash alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from builder.errors import BuilderError, FetchError, HashMismatch
from builder.model import DEBIAN_CHANNEL, FIND_LINKS, Fetched, LockedPackage
from builder.net.findlinks import FindLinks, as_path
from builder.net.http import make_client
from builder.net.mirrors import mirrors_of
from builder.progress import QUIET, Reporter
from builder.redact import redact
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import CHUNK, require_space, sha256_file, space_errors, write_atomic
from builder.store.fingerprints import verified
from builder.store.folders import CacheFolders

#: Tries of one URL that bring nothing new, before the next place is tried.
TRIES = 4
_TASK = "packages"
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


def fetch_packages(
    packages: Sequence[LockedPackage],
    settings: Settings,
    store: Store,
    *,
    find_links: Sequence[str] = (),
    jobs: int = 8,
    reporter: Reporter = QUIET,
) -> list[Fetched]:
    """The archives of locked packages, in the order given.

    Local files (``file:``, find-links, folders of mirrors, the Debian channel) are verified and used where they are; anything
    else is downloaded into the store, ``jobs`` at a time, hashed while it streams, resumed where a run before broke off.

    Raises:
        HashMismatch: something else came than the lock says, twice; it was deleted.
        FetchError: gone with no mirror, no access, unreachable, offline.
        SpaceError: the disk is full.
    """
    fetcher = _Fetcher(settings, store, find_links, reporter)
    with ThreadPoolExecutor(jobs, thread_name_prefix="fetch") as pool:
        # Hashing what is new on this disk is worth the threads; a look at what is known is not.
        out = list((map if fetcher.all_known(packages) else pool.map)(fetcher.at_hand, packages))
        missing = [i for i, fetched in enumerate(out) if fetched is None]
        if missing:
            reporter.start(_TASK, None)
            with make_client(jobs) as client:
                futures = {i: pool.submit(fetcher.fetch, packages[i], client) for i in missing}
                try:
                    wait(futures.values(), return_when=FIRST_EXCEPTION)
                    failed = [f for f in futures.values() if f.done() and f.exception()]
                    for i, future in futures.items() if not failed else ():
                        out[i] = future.result()
                    for future in failed[:1]:
                        future.result()
                finally:
                    fetcher.stop.set()
                    pool.shutdown(cancel_futures=True)
                    reporter.finish(_TASK)
    return [f for f in out if f is not None]


def head_sizes(
    packages: Sequence[LockedPackage],
    settings: Settings,
    store: Store,
    *,
    find_links: Sequence[str] = (),
    jobs: int = 16,
) -> dict[str, int | None]:
    """The archive size in bytes of each package by its key: from this disk, else asked by HEAD; None where nobody says.

    Nothing is downloaded, hashed or made.
    """
    fetcher = _Fetcher(settings, store, find_links, QUIET)
    sizes = {p.key: fetcher.size_here(p) for p in packages}
    unknown = {p.key: p for p in packages if sizes[p.key] is None}
    if unknown and not settings.offline:
        with make_client(jobs) as client, ThreadPoolExecutor(jobs, thread_name_prefix="head") as pool:
            sizes |= dict(
                zip(unknown, pool.map(lambda p: fetcher.size_there(p, client), unknown.values()), strict=True)
            )
    return sizes


class _Url(NamedTuple):
    url: str
    shown: str


class _NotThere(Exception):
    """The server answers, and does not give the file."""


class _Fetcher:
    def __init__(
        self, settings: Settings, store: Store, find_links: Sequence[str], reporter: Reporter
    ) -> None:
        self._settings = settings
        self._store = store
        self._links = FindLinks(find_links)
        self._reporter = reporter
        self._down: set[str] = set()
        self._channel_lock = threading.Lock()
        self._channel_renewed = False
        self.stop = threading.Event()

    # where it may be

    def places(
        self, package: LockedPackage, client: httpx.Client | None, *, make: bool = True
    ) -> Iterator[Path | _Url]:
        """Where to look, in order. Web pages are read only with a ``client``, the Debian channel is made only with ``make``."""
        url = os.path.expandvars(package.url)  # as conda-lock does: $TOKEN in a URL
        for mirrored in mirrors_of(self._settings, url):
            folder = as_path(mirrored)
            yield folder if folder is not None else _Url(mirrored, redact(mirrored))
        if url.startswith(DEBIAN_CHANNEL):
            yield from self._debian_channel(url.removeprefix(DEBIAN_CHANNEL), make)
        elif (path := as_path(url)) is not None:
            yield path
        elif not url.startswith(FIND_LINKS):
            yield _Url(url, redact(package.url))
        if package.manager == "pip":
            yield from self._links.local(package.filename)
            if client is not None and not self._settings.offline:
                yield from (_Url(u, redact(u)) for u in self._links.remote(package.filename, client))

    def _debian_channel(self, name: str, make: bool) -> Iterator[Path]:
        from builder.channel.debian import SUBDIRS, debian_channel

        if not re.fullmatch(rf"({'|'.join(SUBDIRS)})/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.conda", name):
            raise FetchError(
                f"{DEBIAN_CHANNEL}{name} names no package of the Debian channel", "lock again: builder lock"
            )
        if not make:
            yield CacheFolders(self._settings.cache).channels / "debian" / name
            return
        with self._channel_lock:
            folder = debian_channel(self._settings, self._reporter)
        yield folder / name
        if not self._settings.offline:  # the lock may be newer than this machine's channel
            with self._channel_lock:
                if not self._channel_renewed:
                    self._channel_renewed = True
                    debian_channel(self._settings, self._reporter, refresh=True)
            yield folder / name

    # what is here already

    def all_known(self, packages: Sequence[LockedPackage]) -> bool:
        """Whether nothing is to be hashed, most likely: every package was seen on this disk before."""
        return all(
            (digest := self._digest(p))
            and (self._store.path(digest).exists() or self._store.seen_file(digest).exists())
            for p in packages
        )

    def at_hand(self, package: LockedPackage) -> Fetched | None:
        """The package when it needs no network."""
        digest = self._digest(package)
        blob = self._store.get(digest) if digest else None
        if blob is not None:
            return Fetched(package, blob, blob.stat().st_size)
        for place in self.places(package, None):
            if isinstance(place, Path):
                if self._matches(place, package):
                    return Fetched(package, place, place.stat().st_size)
            elif not self._settings.offline:
                return None
        return None

    def _digest(self, package: LockedPackage) -> str | None:
        """The store's name of the package: of one locked by md5 alone, what it was when it was seen before."""
        if package.sha256:
            return f"sha256:{package.sha256}"
        known = self._known(package)
        try:
            os.utime(known)  # when it was last used: what `builder cache prune` goes by
            return known.read_text()
        except OSError:
            return None

    def _known(self, package: LockedPackage) -> Path:
        return self._store.seen_file(f"md5:{package.md5}")

    def _matches(self, path: Path, package: LockedPackage) -> bool:
        """Whether a local file is what the lock says."""
        try:
            if not path.is_file():
                return False
            digest = self._digest(package)
            if digest is None:
                with path.open("rb") as f:
                    if (
                        hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
                        != package.md5
                    ):
                        return False
                digest = sha256_file(path)
                write_atomic(self._known(package), digest.encode())
            return verified(path, digest, self._store.seen_file(digest))
        except PermissionError:
            return False

    def size_here(self, package: LockedPackage) -> int | None:
        """The size of a file on this disk that should be the package; nothing is hashed or made."""
        digest = self._digest(package)
        here = [self._store.path(digest)] if digest else []
        for place in (*here, *self.places(package, None, make=False)):
            if isinstance(place, Path):
                with contextlib.suppress(OSError):
                    return place.stat().st_size
        return None

    def size_there(self, package: LockedPackage, client: httpx.Client) -> int | None:
        """The size that a server says."""
        for place in self.places(package, client, make=False):
            if (
                isinstance(place, Path)
                or _host(place.url) in self._down
                or not place.url.startswith(("http://", "https://"))
            ):
                continue
            try:
                answer = client.head(place.url)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                self._down.add(_host(place.url))
                continue
            except (httpx.HTTPError, httpx.InvalidURL):
                continue
            length = answer.headers.get("content-length", "")
            if answer.is_success and length.isdigit():
                return int(length)
        return None

    # what is not

    def fetch(self, package: LockedPackage, client: httpx.Client) -> Fetched:
        """Downloads a package, unless another build does so meanwhile."""
        with self._store.lock(f"fetch {package.key}"):
            if (found := self.at_hand(package)) is not None:
                return found
            tried: list[str] = []
            mismatch: HashMismatch | None = None
            for place in self.places(package, client):
                if isinstance(place, Path):
                    if self._matches(place, package):
                        return Fetched(package, place, place.stat().st_size)
                    if there := place.is_file():
                        mismatch = HashMismatch(
                            f"{package.filename}: {place} is not what the lock says ({package.key})",
                            "put the locked file back, or lock again: builder lock",
                        )
                    tried.append(f"{place}: {'not what the lock says' if there else 'no such file'}")
                    continue
                try:
                    return self._from_web(package, place, client)
                except HashMismatch as e:
                    mismatch = e
                except _NotThere as e:
                    tried.append(f"{place.shown}: {e}")
                except (httpx.HTTPError, httpx.InvalidURL) as e:
                    if isinstance(e, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
                        self._down.add(_host(place.url))
                    tried.append(f"{place.shown}: {type(e).__name__}: {_plain(e)}")
            raise mismatch or _nowhere(package, tried, self._settings.offline)

    def _from_web(self, package: LockedPackage, place: _Url, client: httpx.Client) -> Fetched:
        """Downloads and checks; what does not match is deleted and tried once more."""
        if self._settings.offline:
            raise _NotThere("offline")
        if not place.url.startswith(("http://", "https://")):
            raise _NotThere("not an http, https or file URL")
        if _host(place.url) in self._down:
            raise _NotThere("the host does not answer")
        path = self._store.folders.partial / package.key.replace(":", "-")
        got = ""
        for _ in range(2):
            with _Partial(path, package) as part:
                self._download(package, place, client, part)
            if part.matches():
                sha256 = part.sha256.hexdigest()
                stored = self._store.adopt(path, f"sha256:{sha256}")
                if not package.sha256:
                    write_atomic(self._known(package), f"sha256:{sha256}".encode())
                return Fetched(package, stored, stored.stat().st_size)
            path.unlink(missing_ok=True)
            got = part.key
            self._reporter.warn(
                f"{package.filename}: {place.shown} gave {got}, the lock says {package.key}; deleted"
            )
        raise HashMismatch(
            f"{package.filename}: {place.shown} gave {got} twice, the lock says {package.key}; what came was deleted",
            "the file was replaced after locking, or something on the way changes it: lock again, or use another mirror",
        )

    def _download(self, package: LockedPackage, place: _Url, client: httpx.Client, part: _Partial) -> None:
        """Streams a URL into a partial file, going on where it ends."""
        tries = 0
        while True:
            if self.stop.is_set():
                raise _interrupted(package)
            have = part.size
            headers = {"Range": f"bytes={have}-"} if have else {}
            try:
                with client.stream("GET", place.url, headers=headers) as answer:
                    if (
                        answer.status_code == 416 and have
                    ):  # whole already, or longer than what the server has
                        if part.matches():
                            return
                        part.restart()
                        continue
                    if answer.status_code in _TRANSIENT:
                        raise httpx.HTTPStatusError(_status(answer), request=answer.request, response=answer)
                    if not answer.is_success:
                        raise _NotThere(_status(answer))
                    self._receive(package, answer, part)
                    return
            except (httpx.TransportError, httpx.HTTPStatusError) as e:
                tries = 1 if part.size > have else tries + 1
                unreachable = isinstance(e, httpx.ConnectError | httpx.ConnectTimeout)
                if (
                    isinstance(e, httpx.UnsupportedProtocol)
                    or tries >= (2 if unreachable else TRIES)
                    or "CERTIFICATE" in str(e)
                ):
                    raise
                self.stop.wait(_pause(e, tries))

    def _receive(self, package: LockedPackage, answer: httpx.Response, part: _Partial) -> None:
        start = (
            re.match(r"bytes (\d+)-", answer.headers.get("content-range", ""))
            if answer.status_code == 206
            else None
        )
        if start is None or int(start[1]) != part.size:
            if part.size:
                part.restart()
            if start is not None and int(start[1]):
                raise httpx.ReadError("the server answered with another range than asked for")
        length = answer.headers.get("content-length", "")
        if length.isdigit():
            require_space(part.path.parent, int(length), f"the download of {package.filename}")
        for chunk in answer.iter_raw():
            if self.stop.is_set():
                raise _interrupted(package)
            part.write(chunk)
            self._reporter.advance(_TASK, len(chunk))


class _Partial:
    """A download that may be resumed: the file, and the hashes of what it holds. The caller holds the package's lock."""

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
        self.size, self.sha256 = 0, hashlib.sha256()
        self._md5 = None if self._package.sha256 else hashlib.md5(usedforsecurity=False)

    def _add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.sha256.update(chunk)
        if self._md5 is not None:
            self._md5.update(chunk)

    @property
    def key(self) -> str:
        """The hash of what is there, in the form of :attr:`LockedPackage.key`."""
        return (
            f"md5:{self._md5.hexdigest()}" if self._md5 is not None else f"sha256:{self.sha256.hexdigest()}"
        )

    def matches(self) -> bool:
        """Whether it is the package."""
        return self.key == self._package.key

    def restart(self) -> None:
        """Forgets what came so far."""
        self._file.truncate(0)
        self._reset()

    def write(self, chunk: bytes) -> None:
        """Appends. Raises SpaceError."""
        with space_errors(self.path.parent):
            done = 0
            while done < len(chunk):
                done += self._file.write(memoryview(chunk)[done:])
        self._add(chunk)

    def __enter__(self) -> _Partial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _status(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code} {answer.reason_phrase}".rstrip()


def _pause(error: Exception, tries: int) -> float:
    """Seconds before the next try: what the server asks for (60 at most), else 0.5, 1, 2 ..."""
    response = error.response if isinstance(error, httpx.HTTPStatusError) else None
    asked = response.headers.get("retry-after", "") if response is not None else ""
    return min(60.0, float(asked)) if asked.isdigit() else 0.25 * 2.0**tries


def _plain(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else "no answer"
    return " ".join(redact(word) if "://" in word else word for word in text.split())


def _interrupted(package: LockedPackage) -> FetchError:
    return FetchError(f"{package.filename}: interrupted", "run again: what came so far is kept")


def _nowhere(package: LockedPackage, tried: Sequence[str], offline: bool) -> BuilderError:
    said = "; ".join(tried) or "no folder or page of find-links has it"
    if package.url.startswith(DEBIAN_CHANNEL):
        hint = "Debian's mirror has other versions now: lock again (builder lock), or copy the channel of the machine that locked"
    elif package.url.startswith(FIND_LINKS):
        hint = "name the folder that has it: pip's find-links (PIP_FIND_LINKS), or the recipe's; or lock again: builder lock"
    elif offline:
        hint = "go online once to fill the cache, or give a mirror: BUILDER_MIRRORS='FROM=TO' (TO may be a folder)"
    elif unset := re.search(r"\$\{?(\w+)", os.path.expandvars(package.url)):
        hint = f"the URL needs the environment variable {unset[1]}, which is not set"
    elif "CERTIFICATE" in said:
        hint = "name the authority's certificate in SSL_CERT_FILE, or in pip's configuration (cert)"
    elif "HTTP 404" in said or "HTTP 410" in said:
        hint = "the package was removed: lock again, or give a mirror that still has it: BUILDER_MIRRORS='FROM=TO'"
    elif "HTTP 401" in said or "HTTP 403" in said:
        hint = "put the user and password for this host into ~/.netrc"
    else:
        hint = "check the network, or give a mirror: BUILDER_MIRRORS='FROM=TO' (docs/offline.md)"
    return FetchError(f"{package.name} {package.version} could not be fetched: {said}", hint)
