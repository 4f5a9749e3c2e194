"""Locked packages to verified archives on this machine's disk."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from builder.errors import BuilderError, FetchError, HashMismatch
from builder.fetch.findlinks import local_file, pip_configuration, remote_urls
from builder.fetch.http import make_client, shown
from builder.model import Fetched, LockedPackage
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store import CHUNK, Store, require_space, space_errors, verified

#: Lock files name what lies in the embedded channel, or in a find-links folder, without any machine's paths.
EMBEDDED = "builder://debian/"
FIND_LINKS = "builder://find-links/"
RETRIES = 4
_TASK = "packages"

__all__ = ["EMBEDDED", "FIND_LINKS", "fetch_packages", "head_sizes", "make_client", "pip_configuration", "shown"]


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

    Local files (``file:``, find-links, the embedded channel) are verified and used where they are; anything else is downloaded into the
    store, ``jobs`` at a time, hashed while it streams, resumed where a run before broke off.

    Raises:
        HashMismatch: twice something else came than the lock says; it was deleted.
        FetchError: gone with no mirror, unreachable, offline.
        SpaceError: the disk is full.
    """
    fetcher = _Fetcher(settings, store, find_links, reporter)
    out: list[Fetched | None] = [fetcher.at_hand(p) for p in packages]
    missing = [i for i, f in enumerate(out) if f is None]
    if not missing:
        return [f for f in out if f]
    reporter.start(_TASK, None)
    with make_client(jobs) as client, ThreadPoolExecutor(jobs, thread_name_prefix="fetch") as pool:
        futures = {i: pool.submit(fetcher.fetch, packages[i], client) for i in missing}
        try:
            for i, future in futures.items():
                out[i] = future.result()
        except BaseException:
            fetcher.stop.set()
            for future in futures.values():
                future.cancel()
            raise
        finally:
            reporter.finish(_TASK)
    return [f for f in out if f]


def head_sizes(
    packages: Sequence[LockedPackage], settings: Settings, store: Store, *, find_links: Sequence[str] = (), jobs: int = 16
) -> dict[str, int | None]:
    """The archive size in bytes of each package by key: from this disk, else asked by HEAD; None where nobody says."""
    fetcher = _Fetcher(settings, store, find_links, QUIET)

    def size(package: LockedPackage, client: httpx.Client) -> int | None:
        if (path := fetcher.local(package)) is not None:
            return path.stat().st_size
        if package.sha256 and (path := store.path(f"sha256:{package.sha256}")).exists():
            return path.stat().st_size
        for url in fetcher.urls(package):
            if (folder := _as_path(url)) is not None:
                if folder.is_file():
                    return folder.stat().st_size
                continue
            if settings.offline or fetcher.is_down(url):
                continue
            try:
                answer = client.head(url)
            except httpx.HTTPError:
                fetcher.mark_down(url)
                continue
            length = answer.headers.get("content-length", "")
            if answer.is_success and length.isdigit():
                return int(length)
        return None

    with make_client(jobs) as client, ThreadPoolExecutor(jobs) as pool:
        return dict(zip((p.key for p in packages), pool.map(lambda p: size(p, client), packages), strict=True))


def _as_path(url: str) -> Path | None:
    """The local path of a ``file:`` URL or plain folder name, else None."""
    if url.startswith("file:"):
        return Path(unquote(urlsplit(url).path))
    return None if "://" in url else Path(url)


class _Gone(Exception):
    """The server answers, and has no such file."""


class _Fetcher:
    def __init__(self, settings: Settings, store: Store, find_links: Sequence[str], reporter: Reporter) -> None:
        self._settings = settings
        self._store = store
        self._own_links = tuple(find_links)
        self._reporter = reporter
        self._down: set[str] = set()
        self._channel_lock = threading.Lock()
        self.stop = threading.Event()

    # what is here already

    def at_hand(self, package: LockedPackage) -> Fetched | None:
        """The package when it needs no network."""
        if package.sha256:
            blob = self._store.get(f"sha256:{package.sha256}")
            if blob is not None:
                return Fetched(package, blob, blob.stat().st_size)
        path = self.local(package)
        if path is None:
            return None
        if self._matches(path, package):
            return Fetched(package, path, path.stat().st_size)
        if package.url.startswith(("file:", EMBEDDED)):
            raise HashMismatch(
                f"{package.filename}: {path} is not what the lock says ({package.key})",
                "put the locked file back, or lock again",
            )
        self._reporter.warn(f"{path} is not what the lock says: looking elsewhere")
        return None

    def local(self, package: LockedPackage) -> Path | None:
        """Where the package lies on this disk, unverified; makes the embedded channel when the lock needs it."""
        url = package.url
        if url.startswith(EMBEDDED):
            from builder.channel.debian import debian_channel

            with self._channel_lock:
                folder = debian_channel(self._settings, self._reporter)
            path = folder / url.removeprefix(EMBEDDED)
            if not path.is_file():
                raise FetchError(
                    f"{package.filename} is not in the embedded channel of this machine: Debian's mirror has moved on since the lock",
                    "lock again: builder lock",
                )
            return path
        if url.startswith("file:"):
            file = _as_path(url)
            if file is not None and file.is_file():
                return file
        if package.manager != "pip" or not url.startswith((FIND_LINKS, "file:")) and not self._settings.offline:
            return None  # what the URL gives is looked for elsewhere only when it does not
        return self._found_by_name(package)

    def _found_by_name(self, package: LockedPackage) -> Path | None:
        configured = pip_configuration()
        indexes = [u for u in (configured.index_url, *configured.extra_index_urls) if u]
        return local_file(self._links(), package.filename, indexes)

    def _links(self) -> tuple[str, ...]:
        return (*self._own_links, *pip_configuration().find_links)

    def _matches(self, path: Path, package: LockedPackage) -> bool:
        if package.sha256:
            digest = f"sha256:{package.sha256}"
            return verified(path, digest, self._store.seen_file(digest))
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == package.md5

    # what is not

    def urls(self, package: LockedPackage) -> Iterator[str]:
        """Where to look, in order: the mirrors of the lock's URL, the URL, the pages of find-links."""
        if not package.url.startswith("builder:"):
            for source, target in self._settings.mirrors:
                if package.url.startswith(source):
                    yield target.rstrip("/") + "/" + package.url[len(source) :].lstrip("/")
            yield package.url
        if package.manager == "pip":
            if (path := self._found_by_name(package)) is not None:
                yield str(path)
            if not self._settings.offline:
                configured = pip_configuration()
                yield from remote_urls(self._links(), package.filename, [u for u in (configured.index_url, *configured.extra_index_urls) if u])

    def is_down(self, url: str) -> bool:
        return urlsplit(url).netloc in self._down

    def mark_down(self, url: str) -> None:
        self._down.add(urlsplit(url).netloc)

    def fetch(self, package: LockedPackage, client: httpx.Client) -> Fetched:
        """Downloads a package, or takes it from a mirror's folder."""
        with self._store.lock(f"fetch {package.key}"):
            if (found := self.at_hand(package)) is not None:  # another build fetched it meanwhile
                return found
            tried: list[str] = []
            mismatch: HashMismatch | None = None
            for url in self.urls(package):
                folder = _as_path(url)
                if folder is not None:
                    if folder.is_file() and self._matches(folder, package):
                        return Fetched(package, folder, folder.stat().st_size)
                    tried.append(f"{folder}: {'not what the lock says' if folder.is_file() else 'no such file'}")
                    continue
                if self._settings.offline:
                    tried.append(f"{shown(url)}: offline")
                    continue
                if self.is_down(url):
                    tried.append(f"{shown(url)}: host does not answer")
                    continue
                try:
                    return self._verified_download(package, url, client)
                except HashMismatch as e:
                    mismatch = e
                except _Gone as e:
                    tried.append(f"{shown(url)}: {e}")
                except httpx.HTTPError as e:
                    self.mark_down(url)
                    tried.append(f"{shown(url)}: {type(e).__name__}: {_plain(e)}")
            if mismatch is not None:
                raise mismatch
            raise _nowhere(package, tried, self._settings.offline)

    def _verified_download(self, package: LockedPackage, url: str, client: httpx.Client) -> Fetched:
        """Downloads and checks; what does not match is deleted and tried once more."""
        got = ""
        for _ in range(2):
            path, sha256, md5 = self._download(package, url, client)
            if (package.sha256 == sha256) if package.sha256 else (package.md5 == md5):
                stored = self._store.adopt(path, f"sha256:{sha256}")
                return Fetched(package, stored, stored.stat().st_size)
            got = f"sha256:{sha256}" if package.sha256 else f"md5:{md5}"
            path.unlink(missing_ok=True)
            self._reporter.warn(f"{package.filename}: {shown(url)} gave {got}, not {package.key}; deleted")
        raise HashMismatch(
            f"{package.filename}: {shown(url)} gave {got} twice, the lock says {package.key}; what came was deleted",
            "the file was replaced after locking, or something between you and the server changes it: lock again, or use another mirror",
        )

    def _download(self, package: LockedPackage, url: str, client: httpx.Client) -> tuple[Path, str, str]:
        """Streams a URL into the partial file of the package; gives the file and its hashes (hex)."""
        folder = self._store.root / "partial"
        with space_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / package.key.replace(":", "-")
        for attempt in range(RETRIES):
            if self.stop.is_set():
                raise FetchError(f"{package.filename}: interrupted", "run again: what came so far is kept")
            have = path.stat().st_size if path.exists() else 0
            headers = {"Range": f"bytes={have}-"} if have else {}
            try:
                with client.stream("GET", url, headers=headers) as answer:
                    if answer.status_code == 416:  # nothing beyond what we have: whole, or not the same file
                        return path, *_hashes(path)
                    if answer.status_code in (429, 500, 502, 503, 504):
                        raise httpx.HTTPStatusError(f"HTTP {answer.status_code}", request=answer.request, response=answer)
                    if not answer.is_success:
                        raise _Gone(f"HTTP {answer.status_code} {answer.reason_phrase}")
                    self._receive(answer, path, resumed=answer.status_code == 206)
                return path, *_hashes(path)
            except (httpx.TransportError, httpx.HTTPStatusError) as e:
                grown = path.exists() and path.stat().st_size > have
                if isinstance(e, httpx.ConnectError) and attempt >= 1:
                    raise
                if attempt == RETRIES - 1 and not grown:
                    raise
                self.stop.wait(_pause(e, attempt))
        raise httpx.ReadError(f"broke off {RETRIES} times")

    def _receive(self, answer: httpx.Response, path: Path, *, resumed: bool) -> None:
        length = answer.headers.get("content-length", "")
        if length.isdigit() and int(length) > 64 << 20:
            require_space(path.parent, int(length), f"the download of {shown(str(answer.url)).rsplit('/', 1)[-1]}")
        with space_errors(path.parent), path.open("ab" if resumed else "wb") as out:
            for chunk in answer.iter_raw(CHUNK):
                if self.stop.is_set():
                    raise FetchError("interrupted", "run again: what came so far is kept")
                out.write(chunk)
                self._reporter.advance(_TASK, len(chunk))


def _pause(error: Exception, attempt: int) -> float:
    """Seconds before the next try: what the server asks for (60 at most), else 0.5, 1, 2 ..."""
    response = getattr(error, "response", None)
    asked = response.headers.get("retry-after", "") if response is not None else ""
    return min(60.0, float(asked)) if asked.isdigit() else 0.5 * 2.0**attempt


def _hashes(path: Path) -> tuple[str, str]:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            sha256.update(chunk)
            md5.update(chunk)
    return sha256.hexdigest(), md5.hexdigest()


def _plain(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else "no answer"
    with contextlib.suppress(ValueError):
        return " ".join(shown(w) if "://" in w else w for w in text.split())
    return "no answer"


def _nowhere(package: LockedPackage, tried: Sequence[str], offline: bool) -> BuilderError:
    where = "; ".join(tried) or "no find-links folder has it"
    if offline:
        cure = "go online once to fill the cache, or give a mirror: BUILDER_MIRRORS='FROM=TO' (TO may be a folder)"
    elif any("HTTP 404" in t or "HTTP 410" in t for t in tried):
        cure = "the package was removed: lock again, or give a mirror that still has it: BUILDER_MIRRORS='FROM=TO'"
    else:
        cure = "check the network, or give a mirror: BUILDER_MIRRORS='FROM=TO' (docs/offline.md)"
    return FetchError(f"{package.name} {package.version} could not be fetched: {where}", cure)


