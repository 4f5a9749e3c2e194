"""A client of OCI registries (distribution-spec 1.1) for images with many and large layers.

Blobs are streamed from and to disk in pieces of 1 MiB, so memory does not grow with them. A blob goes out as one PUT, which every
registry takes; when the registry refuses it as too large or the connection breaks, the rest follows in chunks (PATCH) from
where the registry says it stands. All methods may be called from several threads at once.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import json
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx

from builder.errors import HashMismatch, RegistryError
from builder.model import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Descriptor
from builder.oci.reference import DOCKER_ALIASES, DOCKER_IO, check_repository, is_digest
from builder.progress import QUIET, Reporter
from builder.registry.auth import Authenticator, Credentials, Scopes, find_credentials
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import CHUNK, space_errors
from builder.version import __version__

ACCEPT = (OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)
#: Tries of a request, or of a blob without any byte gained, before giving up.
TRIES = 6
#: A chunk of an upload, in bytes, when one PUT will not do; a quarter of it after each refusal, down to the least.
FIRST_CHUNK, LEAST_CHUNK = 64 << 20, 1 << 20
#: GitHub's registry refuses larger PATCH bodies.
CHUNKS = {"ghcr.io": 4 << 20}
#: No manifest, error or list of tags is larger than this.
LARGEST_ANSWER = 32 << 20
LONGEST_WAIT_S = 120.0
_BUSY = frozenset({429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Progress = Callable[[int], None]
#: Gives a blob's bytes from an offset on.
BlobSource = Callable[[int], Iterator[bytes]]


class ArtifactRefused(RegistryError):
    """A registry that takes images and nothing else."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A registry's answer, read to its end."""

    status: int
    reason: str
    headers: httpx.Headers
    body: bytes
    url: httpx.URL

    def errors(self) -> list[tuple[str, str]]:
        """The codes and messages of the body (distribution-spec, error codes)."""
        try:
            found = json.loads(self.body)["errors"]
            return [(str(e.get("code", "")), str(e.get("message", ""))[:300]) for e in found]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []

    def codes(self) -> frozenset[str]:
        return frozenset(code for code, _ in self.errors())


class RegistryClient:
    """One registry.

    Plain http is spoken only to this machine (Docker's rule) or when ``insecure`` is True, which also leaves certificates
    unchecked; ``insecure=False`` asks for TLS even here. Certificates are checked against SSL_CERT_FILE / SSL_CERT_DIR or the
    system's, and against ``*.crt`` in ``certs.d/HOST`` of docker and containers.

    Args:
        host: ``host[:port]``; Docker Hub is ``docker.io``.
        credentials: None looks them up (:func:`find_credentials`) when the registry asks for them.
        insecure: see above.
        settings: ``offline`` is obeyed for registries elsewhere.
        reporter: gets warnings.
        sleep: waits between tries, in seconds.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials | None = None,
        *,
        insecure: bool | None = None,
        settings: Settings | None = None,
        reporter: Reporter = QUIET,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.host = DOCKER_IO if host in DOCKER_ALIASES else host
        self._api_host = "registry-1.docker.io" if host in DOCKER_ALIASES else host
        self._loopback = is_loopback(self._api_host)
        if settings is not None and settings.offline and not self._loopback:
            raise RegistryError(
                f"BUILDER_OFFLINE is set, so {self.host} is not asked",
                "unset BUILDER_OFFLINE, or name an OCI layout: oci:DIR",
            )
        self._insecure = insecure
        self._given = credentials
        self._reporter = reporter
        self._sleep = sleep
        self._met = False
        self._lock = threading.Lock()
        self._scheme = ""
        self._credentials: dict[str, Credentials] = {}
        self._warned: set[str] = set()
        self._pushes: set[str] = set()
        self._chunk = 0
        context = tls_context(self._api_host, verify=insecure is not True)
        self._http = httpx.Client(
            verify=context,
            trust_env=not self._loopback,  # proxies are for other machines
            follow_redirects=False,
            headers={"User-Agent": f"builder/{__version__}", "Accept-Encoding": "identity"},
            limits=httpx.Limits(max_connections=32, max_keepalive_connections=32),
            timeout=httpx.Timeout(
                300, connect=15, write=120, pool=None
            ),  # a registry may take minutes to put a large blob away
        )
        self._auth = Authenticator(
            self.host,
            self._http,
            self._send_token_request,
            self._credentials_for,
            secure=lambda: self._scheme == "https",
        )

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"RegistryClient({self.host!r})"

    @property
    def plain_http(self) -> bool:
        """Whether the registry is spoken to without TLS."""
        return self._find_scheme() == "http"

    def credentials(self, repo: str) -> Credentials:
        """Those that are used when the registry asks for some; ANONYMOUS when none are known."""
        return self._credentials_for(repo)

    def expect_push(self, repo: str) -> None:
        """Says that ``repo`` will be pushed to: one token with that right serves all, and a missing right shows at once."""
        check_repository(repo)
        self._pushes.add(repo)

    # manifests and tags -----------------------------------------------------------------------------------------------

    def ping(self) -> None:
        """Asks whether this is a registry that lets us in.

        Raises:
            RegistryError: it is not, or does not, or cannot be reached.
        """
        answer = self._ask("GET", "/v2/", scopes=frozenset())
        if answer.status != 200:
            self._fail(answer, "be asked for its version")

    def head_manifest(self, repo: str, ref: str) -> Descriptor | None:
        """What a tag or digest names, without fetching it; None when the registry has no such thing."""
        answer = self._ask(
            "HEAD",
            self._manifest_path(repo, ref),
            scopes=self._pull(repo),
            repo=repo,
            headers={"Accept": ", ".join(ACCEPT)},
        )
        if answer.status == 404:
            return None
        if answer.status != 200:
            self._fail(answer, f"say what {self._named(repo, ref)} is")
        media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        digest, size = (
            answer.headers.get("Docker-Content-Digest", ""),
            answer.headers.get("Content-Length", ""),
        )
        if not is_digest(digest) or not size.isdigit():
            data, media_type, digest = self.get_manifest(repo, ref)
            return Descriptor(media_type, digest, len(data))
        return Descriptor(media_type, digest, int(size))

    def get_manifest(self, repo: str, ref: str, accept: Sequence[str] = ACCEPT) -> tuple[bytes, str, str]:
        """The manifest or index that a tag or digest names: its bytes, media type and digest, checked.

        Raises:
            RegistryError: there is none, or the registry does not give it.
            HashMismatch: what came is not what the digest says.
        """
        answer = self._ask(
            "GET",
            self._manifest_path(repo, ref),
            scopes=self._pull(repo),
            repo=repo,
            headers={"Accept": ", ".join(accept)},
        )
        if answer.status != 200:
            self._fail(answer, f"give {self._named(repo, ref)}")
        digest = sha256(answer.body)
        expected = ref if is_digest(ref) else answer.headers.get("Docker-Content-Digest", digest)
        if expected != digest:
            raise HashMismatch(
                f"{self._named(repo, ref)}: the manifest that came is {digest}, not {expected}",
                "try again; a proxy may have changed it",
            )
        media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        with contextlib.suppress(ValueError, AttributeError):
            media_type = json.loads(answer.body).get("mediaType") or media_type
        return answer.body, media_type, digest

    def put_manifest(self, repo: str, ref: str, data: bytes, media_type: str) -> str:
        """Stores a manifest under a tag or its digest; gives the digest. All its blobs must be there already."""
        return self._put_manifest(repo, ref, data, media_type)[0]

    def put_referrer(self, repo: str, data: bytes, media_type: str) -> bool:
        """Stores a manifest that has a ``subject``; whether the registry lists it as a referrer of that by itself.

        Raises:
            ArtifactRefused: the registry does not take such manifests.
        """
        digest = sha256(data)
        return "OCI-Subject" in self._put_manifest(repo, digest, data, media_type, ArtifactRefused)[1].headers

    def get_referrers(self, repo: str, digest: str) -> list[Descriptor] | None:
        """What the registry lists as attached to a manifest (distribution-spec, listing referrers); None where it cannot list."""
        found: list[Descriptor] = []
        check_repository(repo)
        path: str | httpx.URL = f"/v2/{repo}/referrers/{digest}"
        for _ in range(1000):
            answer = self._ask("GET", path, scopes=self._pull(repo), repo=repo, headers={"Accept": OCI_INDEX})
            if answer.status in (401, 403) or answer.status in _BUSY:
                self._fail(answer, f"list what is attached to {self._named(repo, digest)}")
            if answer.status != 200 or not answer.headers.get("Content-Type", "").startswith(OCI_INDEX):
                return None  # registries before 1.1 answer in many ways
            found += parse_index(answer.body, self.host)
            following = _next_page(answer)
            if following is None:
                return found
            path = self._location(answer.url, following)
        return found

    def _put_manifest(
        self, repo: str, ref: str, data: bytes, media_type: str, refused: type[RegistryError] = RegistryError
    ) -> tuple[str, Answer]:
        answer = self._ask(
            "PUT",
            self._manifest_path(repo, ref),
            scopes=_push(repo),
            repo=repo,
            headers={"Content-Type": media_type},
            body=data,
        )
        if answer.status not in (200, 201, 202):
            lost = answer.codes() & {"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"}
            kind = refused if answer.status in (400, 405, 415, 422) and not lost else RegistryError
            self._fail(answer, f"take the manifest of {self._named(repo, ref)}", kind)
        digest = sha256(data)
        there = answer.headers.get("Docker-Content-Digest", digest)
        if there != digest:
            raise RegistryError(
                f"{self.host} stored the manifest of {self._named(repo, ref)} as {there}, not as {digest}",
                "the registry rewrites manifests: use another",
            )
        return digest, answer

    def delete_manifest(self, repo: str, digest: str) -> None:
        """Deletes a manifest and all its tags; that it is not there is no error."""
        answer = self._ask(
            "DELETE",
            self._manifest_path(repo, digest),
            scopes=frozenset({f"repository:{repo}:delete,pull,push"}),
            repo=repo,
        )
        if answer.status not in (200, 202, 204, 404):
            self._fail(answer, f"delete {self._named(repo, digest)}")

    def list_tags(self, repo: str) -> list[str]:
        """All tags of a repository, sorted; without those that are lists of attached artifacts (``sha256-<hex>``)."""
        check_repository(repo)
        tags: list[str] = []
        path: str | httpx.URL = f"/v2/{repo}/tags/list?n=1000"
        for _ in range(1000):
            answer = self._ask("GET", path, scopes=self._pull(repo), repo=repo)
            if answer.status != 200:
                self._fail(answer, f"list the tags of {self.host}/{repo}")
            try:
                tags += [str(t) for t in json.loads(answer.body).get("tags") or []]
            except (ValueError, AttributeError):
                raise RegistryError(
                    f"{self.host} did not answer with a list of tags", "is this a registry?"
                ) from None
            following = _next_page(answer)
            if following is None:
                break
            path = self._location(answer.url, following)
        return sorted({t for t in tags if not re.fullmatch(r"sha256-[0-9a-f]{64}", t)})

    # blobs: reading ---------------------------------------------------------------------------------------------------

    def head_blob(self, repo: str, digest: str) -> int | None:
        """A blob's size in bytes; None when the repository does not have it."""
        answer = self._ask("HEAD", self._blob_path(repo, digest), scopes=self._pull(repo), repo=repo)
        if answer.status == 404:
            return None
        if answer.status != 200:
            self._fail(answer, f"say whether {self.host}/{repo} has {digest}")
        size = answer.headers.get("Content-Length", "")
        return int(size) if size.isdigit() else 0

    def read_blob(self, repo: str, digest: str, offset: int = 0) -> Iterator[bytes]:
        """A blob's bytes from ``offset`` on, as they come; one try, nothing checked.

        Raises:
            RegistryError: the registry does not have it, or does not give it.
            httpx.TransportError: the connection broke.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._open(
            "GET",
            self._url(self._blob_path(repo, digest)),
            scopes=self._pull(repo),
            repo=repo,
            headers=headers,
        ) as response:
            if response.status_code == 416:
                return  # already whole: the digest will tell
            if response.status_code not in (200, 206):
                self._fail(_read(response), f"give the blob {digest} of {self.host}/{repo}")
            skip = offset if response.status_code == 200 else 0
            if response.status_code == 206 and not response.headers.get("Content-Range", "").startswith(
                f"bytes {offset}-"
            ):
                raise httpx.RemoteProtocolError(
                    f"asked for bytes from {offset}, got {response.headers.get('Content-Range')}"
                )
            for data in response.iter_raw():
                if skip >= len(data):
                    skip -= len(data)
                    continue
                yield data[skip:] if skip else data
                skip = 0

    def get_blob_to(
        self, repo: str, descriptor: Descriptor, store: Store, progress: Progress | None = None
    ) -> Path:
        """Fetches a blob into the store unless it is there; gives its path.

        What an interrupted run left in ``partial/`` is gone on with.

        Raises:
            RegistryError: the registry does not have it, or does not give it.
            HashMismatch: what came is not the blob; it was deleted.
            SpaceError: the disk is full.
        """
        digest, size = descriptor.digest, descriptor.size
        meter = _Meter(progress, size)
        path = store.path(digest)  # also checks the digest's form, before it becomes a file name
        partial = store.folders.partial / f"blob-{path.name}"
        with store.lock(f"blob {digest}"), space_errors(store.root):
            if found := store.get(digest, size):
                meter.at(size)
                return found
            partial.parent.mkdir(parents=True, exist_ok=True)
            self._download_whole(repo, digest, size, partial, meter)
            return store.adopt(partial, digest)

    def get_blob_file(
        self, repo: str, descriptor: Descriptor, partial: Path, progress: Progress | None = None
    ) -> None:
        """Brings a file to hold a blob; what it holds already is gone on with. The caller sees to it that he is the only one.

        Raises:
            RegistryError, HashMismatch, SpaceError: as :meth:`get_blob_to`.
        """
        with space_errors(partial.parent):
            self._download_whole(
                repo, descriptor.digest, descriptor.size, partial, _Meter(progress, descriptor.size)
            )

    def get_blob(self, repo: str, descriptor: Descriptor) -> bytes:
        """A small blob, checked.

        Raises:
            RegistryError: the registry does not have it, or does not give it.
            HashMismatch: what came is not the blob.
        """
        answer = self._ask(
            "GET", self._blob_path(repo, descriptor.digest), scopes=self._pull(repo), repo=repo
        )
        if answer.status != 200:
            self._fail(answer, f"give the blob {descriptor.digest} of {self.host}/{repo}")
        if sha256(answer.body) != descriptor.digest:
            raise HashMismatch(
                f"the blob {descriptor.digest} that {self.host}/{repo} gave is something else",
                "the registry's copy or a proxy is damaged",
            )
        return answer.body

    def _download_whole(self, repo: str, digest: str, size: int, partial: Path, meter: _Meter) -> None:
        for _ in range(2):  # what an earlier run left may be damaged; a second try starts afresh
            if self._download(repo, digest, size, partial, meter) == digest:
                return
            partial.unlink()
        raise HashMismatch(
            f"the blob {digest} that {self.host}/{repo} gave is something else, twice; it was deleted",
            "the registry's copy or a proxy is damaged",
        )

    def _download(self, repo: str, digest: str, size: int, partial: Path, meter: _Meter) -> str:
        """Brings ``partial`` to ``size`` bytes; gives the digest of what is in it then."""
        with partial.open("a+b") as out:
            out.seek(0)
            hashed = hashlib.sha256()
            while data := out.read(CHUNK):
                hashed.update(data)
            done = out.tell()
            failures = 0
            while done < size:
                meter.at(done)
                before = done
                try:
                    for data in self.read_blob(repo, digest, done):
                        out.write(data)
                        hashed.update(data)
                        done += len(data)
                        meter.at(done)
                        if done > size:
                            break
                    if done == before:
                        break  # nothing more to be had
                except httpx.TransportError as e:
                    failures = 1 if done > before else failures + 1
                    if failures >= TRIES:
                        self._unreachable(e, f"{self.host}/{repo}")
                    self._pause(failures)
        return f"sha256:{hashed.hexdigest()}"

    # blobs: writing ---------------------------------------------------------------------------------------------------

    def mount_blob(self, repo: str, digest: str, from_repo: str) -> bool:
        """Makes a blob of another repository of this registry appear in ``repo``, sending nothing; whether that worked.

        A registry that cannot, or does not let us read ``from_repo``, is no error.
        """
        check_repository(from_repo)
        answer = self._ask(
            "POST",
            self._url(f"/v2/{repo}/blobs/uploads/").copy_merge_params({"mount": digest, "from": from_repo}),
            scopes=_push(repo) | self._pull(from_repo),
            repo=repo,
            body=b"",
        )
        if answer.status == 201:
            return True
        if answer.status == 202 and (location := answer.headers.get("Location")):
            self._ask(
                "DELETE", self._location(answer.url, location), scopes=_push(repo), repo=repo
            )  # an upload we did not want
            return False
        if answer.status not in (400, 401, 403, 404):
            self._fail(answer, f"mount {digest} of {from_repo} into {self.host}/{repo}")
        return False

    def upload_blob(
        self, repo: str, digest: str, path: Path, size: int, progress: Progress | None = None
    ) -> None:
        """Sends a file as a blob.

        Args:
            repo: where to.
            digest: the file's; the registry checks it.
            path: the file.
            size: its size in bytes.
            progress: gets the bytes as they go out; a negative number when some must go out again.

        Raises:
            RegistryError: the registry refused it, went away, or the file is not what it should be.
        """
        try:
            there = path.stat().st_size
        except OSError as e:
            raise RegistryError(f"cannot read the layer {path}: {e.strerror}", "build again") from None
        if there != size:
            raise RegistryError(
                f"{path} has {there} bytes, {size} were expected",
                "the cache was changed by hand: build again",
            )
        self.upload_stream(repo, digest, size, file_source(path), progress)

    def upload_stream(
        self, repo: str, digest: str, size: int, source: BlobSource, progress: Progress | None = None
    ) -> None:
        """Sends a blob whose bytes ``source`` gives, from any offset and as often as it must. See :meth:`upload_blob`."""
        _Upload(self, repo, digest, size, source, _Meter(progress, size)).run()

    # requests ---------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        path: str | httpx.URL,
        *,
        scopes: Scopes,
        repo: str = "",
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """A request whose answer is small; tried again while the registry is busy or the connection breaks."""
        url = path if isinstance(path, httpx.URL) else self._url(path)
        for n in range(1, TRIES + 1):
            last = n == TRIES
            try:
                with self._open(
                    method, url, scopes=scopes, repo=repo, headers=headers, body=body
                ) as response:
                    answer = _read(response)
            except httpx.TransportError as e:
                if last or not self._met:  # a wrong address shall not take a minute to say so
                    self._unreachable(
                        e, url.netloc.decode() if _origin(url) != _origin(self._url("/")) else self.host
                    )
                self._pause(n)
                continue
            if answer.status not in _BUSY or last:
                return answer
            self._pause(n, answer)
        raise AssertionError

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        url: httpx.URL,
        *,
        scopes: Scopes,
        repo: str,
        headers: dict[str, str] | None = None,
        body: bytes | Callable[[], Iterator[bytes]] | None = None,
    ) -> Iterator[httpx.Response]:
        """One request with credentials and redirects seen to; raises httpx.TransportError when the connection breaks.

        Credentials go to the registry itself only, never to where it redirects to.
        """
        base = self._url("/")
        challenged = redirected = 0
        while True:
            ours = _origin(url) == _origin(base)
            sent = self._auth.header(scopes, repo) if ours else None
            extra = {"Authorization": sent} if sent else {}
            content = body() if callable(body) else body
            request = self._http.build_request(
                method, url, headers={**(headers or {}), **extra}, content=content
            )
            response = self._http.send(request, stream=True)
            try:
                self._met = True
                if response.status_code == 401 and ours and challenged < 2:
                    challenged += 1
                    if self._auth.answer(response.headers.get_list("WWW-Authenticate"), scopes, repo, sent):
                        _drain(response)
                        continue
                elif (
                    response.status_code in _REDIRECTS
                    and method in ("GET", "HEAD")
                    and "Location" in response.headers
                ):
                    redirected += 1
                    target = self._location(url, response.headers["Location"])
                    if redirected > 5 or (
                        url.scheme == "https" and target.scheme != "https" and self._insecure is not True
                    ):
                        place = f"{target.scheme}://{target.host}{target.path}"
                        raise RegistryError(
                            f"{url.host} redirects to {place}, which builder does not follow",
                            "ask the registry's owner: its redirects end nowhere, or leave TLS",
                        )
                    url = target
                    _drain(response)
                    continue
                yield response
                return
            finally:
                response.close()

    def _send_token_request(self, request: httpx.Request) -> httpx.Response:
        for n in range(1, TRIES + 1):
            response = self._http.send(request)
            if response.status_code not in _BUSY or n == TRIES:
                return response
            self._pause(
                n, Answer(response.status_code, response.reason_phrase, response.headers, b"", request.url)
            )
        raise AssertionError

    def _pause(self, failures: int, answer: Answer | None = None) -> None:
        """Waits before the next try: as long as the registry says (Retry-After), else 0.5 s, 1 s, 2 s ..., a little scattered."""
        wait = _retry_after(answer.headers.get("Retry-After", "")) if answer else None
        if wait is None:
            wait = min(0.5 * 2 ** (failures - 1), 30.0) * random.uniform(0.75, 1.25)  # noqa: S311 - no secret depends on it
        self._sleep(min(wait, LONGEST_WAIT_S))

    def _url(self, path: str) -> httpx.URL:
        return httpx.URL(f"{self._find_scheme()}://{self._api_host}{path}")

    def _find_scheme(self) -> str:
        with self._lock:
            if not self._scheme:
                self._scheme = (
                    self._probe()
                    if self._insecure or (self._insecure is None and self._loopback)
                    else "https"
                )
            return self._scheme

    def _probe(self) -> str:
        """Whether a registry that may speak plain http does so; asks without credentials."""
        try:
            with self._http.stream("GET", f"http://{self._api_host}/v2/", timeout=15) as response:
                text = response.headers.get("Location", "") if response.status_code in _REDIRECTS else ""
                if response.status_code == 400:
                    text = "".join(c.decode(errors="replace") for c in response.iter_raw(4096))
                return "https" if re.search(r"\bhttps\b", text, re.IGNORECASE) else "http"
        except httpx.ConnectError as e:
            if ":" in self._api_host.rpartition("]")[2]:
                self._unreachable(e, self.host)  # nothing listens at this port
            return "https"
        except httpx.TransportError:
            return "https"  # TLS servers that hang up on plain http

    def _location(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            target = url.join(location)
        except httpx.InvalidURL:
            raise RegistryError(
                f"{url.host} names a place that is no URL", "this is a fault of the registry; try again later"
            ) from None
        base = self._url("/")
        if base.scheme == "https" and target.scheme == "http" and target.host == base.host:
            target = target.copy_with(
                scheme="https", port=base.port
            )  # a registry behind a proxy that does not know of it
        return target

    def _credentials_for(self, repository: str) -> Credentials:
        if self._given is not None:
            return self._given
        if repository not in self._credentials:
            self._credentials[repository] = find_credentials(self._api_host, repository, warn=self._warn_once)
        return self._credentials[repository]

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._reporter.warn(message)

    def _pull(self, repo: str) -> Scopes:
        return _push(repo) if repo in self._pushes else frozenset({f"repository:{repo}:pull"})

    def _manifest_path(self, repo: str, ref: str) -> str:
        check_repository(repo)
        return f"/v2/{repo}/manifests/{ref}"

    def _blob_path(self, repo: str, digest: str) -> str:
        check_repository(repo)
        return f"/v2/{repo}/blobs/{digest}"

    def _named(self, repo: str, ref: str) -> str:
        return f"{self.host}/{repo}{'@' if is_digest(ref) else ':'}{ref}"

    # errors -----------------------------------------------------------------------------------------------------------

    def _fail(self, answer: Answer, what: str, kind: type[RegistryError] = RegistryError) -> NoReturn:
        """Raises the RegistryError of an answer; ``what`` goes on from "the registry did not"."""
        errors = answer.errors()
        codes = answer.codes()
        said = "; ".join(f"{code}: {message}" if message else code for code, message in errors)
        text = f"{self.host} did not {what}: {answer.status} {answer.reason}" + (f" ({said})" if said else "")
        raise kind(text, self._cure(answer.status, codes, said.lower()))

    def _cure(self, status: int, codes: frozenset[str], said: str) -> str:
        if status == 413 or "quota" in said or codes & {"QUOTA_EXCEEDED", "SIZE_LIMIT_EXCEEDED"}:
            return "the registry takes nothing of this size, or the quota is used up: ask its owner, or delete old images there"
        if status == 401 or status == 403 or codes & {"UNAUTHORIZED", "DENIED"}:
            login = "log in (docker login, podman login), or set REGISTRY_USER and REGISTRY_PASSWORD"
            if not (used := self._auth.used):
                return f"no credentials for {self.host} were found: {login}"
            return f"the credentials of {used.source} were used: they are wrong, have run out, or lack the right; {login}"
        if status == 405 or "UNSUPPORTED" in codes:
            return (
                "the registry is read-only, or does not allow this: publish to another one, or ask its owner"
            )
        if "NAME_INVALID" in codes:
            return "the registry does not allow this repository name: some want PROJECT/NAME, others a single word"
        if status == 404 or codes & {"NAME_UNKNOWN", "MANIFEST_UNKNOWN"}:
            return "correct the repository and the tag; some registries want the repository or project to be created first"
        if codes & {"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"}:
            return "the registry lost a blob meanwhile (garbage collection?): publish again"
        if codes & {"DIGEST_INVALID", "SIZE_INVALID"}:
            return "the blob was damaged on its way or in the cache: publish again, or remove it (builder cache prune)"
        if status == 429:
            return "too many requests: wait, or log in for a higher limit"
        if status >= 500:
            return "this is a fault of the registry; try again later"
        if status in _REDIRECTS:
            return "this address is not the registry itself: use the one it redirects to"
        return "is this the address of a registry?"

    def _unreachable(self, error: Exception, where: str) -> NoReturn:
        causes = list(_causes(error))
        if any(isinstance(c, ssl.SSLCertVerificationError) for c in causes):
            reason = next(c.verify_message for c in causes if isinstance(c, ssl.SSLCertVerificationError))
            text, hint = (
                f"does not trust its certificate: {reason}",
                "name the authority's certificate in SSL_CERT_FILE, or in certs.d (docs/registries.md)",
            )
        elif any(isinstance(c, ssl.SSLError) for c in causes):
            text, hint = (
                "TLS failed",
                "a registry that speaks plain http only must be on this machine, or be allowed with insecure",
            )
        elif any(isinstance(c, socket.gaierror) for c in causes):
            text, hint = "its name is not known", "correct the host's name, or check the network"
        elif any(isinstance(c, ConnectionRefusedError) for c in causes):
            text, hint = "it refuses connections", "is the registry running, and is the port right?"
        elif isinstance(error, httpx.TimeoutException):
            text, hint = (
                "it did not answer in time",
                "check the network and proxy settings, then run the same again: what was sent is not sent again",
            )
        else:
            text, hint = (
                f"the connection broke ({type(error).__name__})",
                "run the same again: what was sent is not sent again",
            )
        raise RegistryError(f"cannot reach {where}: {text}", hint) from None


class _Meter:
    """Tells a transfer's progress; going back is told as a negative number."""

    def __init__(self, progress: Progress | None, size: int) -> None:
        self._progress = progress
        self._size = size
        self._told = 0

    def at(self, position: int) -> None:
        position = min(position, self._size)
        if self._progress is not None and position != self._told:
            self._progress(position - self._told)
        self._told = position


class _Upload:
    """One blob on its way up: one PUT first, then PATCHes from where the registry stands."""

    def __init__(
        self, client: RegistryClient, repo: str, digest: str, size: int, source: BlobSource, meter: _Meter
    ) -> None:
        self.client = client
        self.repo = repo
        self.digest = digest
        self.size = size
        self.source = source
        self.meter = meter
        self.chunk = client._chunk
        """Bytes of a PATCH; 0 while one PUT is tried."""
        self.least = LEAST_CHUNK
        self.location: httpx.URL | None = None
        self.offset = 0
        self.attempted = 0

    def run(self) -> None:
        failures = 0
        while True:
            answer, error = None, None
            before = self.offset
            try:
                if self.location is None:
                    self._begin()
                    before = 0
                answer = self._step()
                if answer is None:
                    return
                if answer.status == 202 and self.offset > before:
                    failures = 0
                    continue
            except httpx.TransportError as e:
                error = e
            failures += 1
            refused = answer is not None and answer.status == 413
            if (
                failures >= TRIES
                or (refused and self.attempted <= self.least)
                or (answer is not None and not self._curable(answer))
            ):
                self._give_up(answer, error)
            if answer is None or answer.status not in _BUSY:
                first = CHUNKS.get(self.client.host, FIRST_CHUNK)
                self.chunk = max(
                    min(self.chunk // 4 if self.chunk else first, self.attempted // 4), self.least
                )
            if refused:
                self.client._chunk = self.chunk  # the next blobs need not be refused first
            else:
                self.client._pause(failures, answer)
                if self.client.head_blob(self.repo, self.digest) is not None:
                    self.meter.at(self.size)  # it was only the answer that got lost
                    return
            self._find_offset()

    @staticmethod
    def _curable(answer: Answer) -> bool:
        """Whether another try, from another offset or in a new session, may go better."""
        return answer.status in (202, 404, 413, 416, *_BUSY) or bool(
            answer.codes() & {"BLOB_UPLOAD_INVALID", "BLOB_UPLOAD_UNKNOWN"}
        )

    def _begin(self) -> None:
        path = f"/v2/{self.repo}/blobs/uploads/"
        check_repository(self.repo)
        answer = self.client._ask("POST", path, scopes=_push(self.repo), repo=self.repo, body=b"")
        if answer.status != 202 or "Location" not in answer.headers:
            self.client._fail(answer, f"begin an upload to {self.client.host}/{self.repo}")
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        self.least = max(LEAST_CHUNK, int(least)) if least.isdigit() else LEAST_CHUNK
        self.location, self.offset = self.client._location(answer.url, answer.headers["Location"]), 0

    def _step(self) -> Answer | None:
        """One PUT or PATCH; None when the blob is whole."""
        if self.offset == 0 and (not self.chunk or self.size <= self.chunk):
            return self._put(0, self.size)
        if self.offset >= self.size:
            return self._put(self.size, self.size)
        end = min(self.offset + self.chunk, self.size)
        answer = self._send("PATCH", self.offset, end)
        if answer.status == 202:
            self.offset = min(_range_end(answer.headers.get("Range", ""), end), end)
            if "Location" in answer.headers:
                self.location = self.client._location(answer.url, answer.headers["Location"])
        return answer

    def _put(self, start: int, end: int) -> Answer | None:
        answer = self._send("PUT", start, end)
        return None if answer.status in (201, 204) else answer

    def _send(self, method: str, start: int, end: int) -> Answer:
        assert self.location is not None
        url = self.location
        self.attempted = end - start
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(end - start)}
        if method == "PUT":
            url = url.copy_merge_params({"digest": self.digest})
        else:
            headers["Content-Range"] = f"{start}-{end - 1}"
        with self.client._open(
            method,
            url,
            scopes=_push(self.repo),
            repo=self.repo,
            headers=headers,
            body=lambda: self._bytes(start, end),
        ) as response:
            return _read(response)

    def _bytes(self, start: int, end: int) -> Iterator[bytes]:
        position = start
        self.meter.at(position)
        if start == end:
            return
        for data in self.source(start):
            data = data[: end - position]
            yield data
            position += len(data)
            self.meter.at(position)
            if position >= end:
                return
        raise RegistryError(
            f"the blob {self.digest} ends {end - position} bytes early",
            "the cache was changed by hand: build again",
        )

    def _find_offset(self) -> None:
        """Asks where the upload stands; a new one is begun when the registry has forgotten it."""
        if self.location is not None:
            answer = self.client._ask("GET", self.location, scopes=_push(self.repo), repo=self.repo)
            if answer.status in (202, 204):
                self.offset = min(_range_end(answer.headers.get("Range", ""), 0), self.size)
                if "Location" in answer.headers:
                    self.location = self.client._location(answer.url, answer.headers["Location"])
                return
        self.location, self.offset = None, 0

    def _give_up(self, answer: Answer | None, error: Exception | None) -> NoReturn:
        if answer is not None:
            self.client._fail(
                answer, f"take the blob {self.digest} ({self.size} bytes) into {self.client.host}/{self.repo}"
            )
        assert error is not None
        self.client._unreachable(error, self.client.host)


def file_source(path: Path) -> BlobSource:
    """The bytes of a file, in pieces of 1 MiB."""

    def read(offset: int) -> Iterator[bytes]:
        with path.open("rb") as f:
            f.seek(offset)
            while data := f.read(CHUNK):
                yield data

    return read


def bytes_source(data: bytes) -> BlobSource:
    """Small data as a blob to send."""
    return lambda offset: iter((data[offset:],))


def is_loopback(host: str) -> bool:
    """Whether ``host[:port]`` is this machine by name or address; nothing is looked up."""
    name = host[1 : host.index("]")] if host.startswith("[") else host.partition(":")[0]
    return (
        name in ("localhost", "::1")
        or name.endswith(".localhost")
        or re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None
    )


def tls_context(host: str, *, verify: bool = True) -> ssl.SSLContext:
    """TLS as the system, SSL_CERT_FILE and ``certs.d`` want it.

    Raises:
        RegistryError: a certificate file cannot be read.
    """
    if not verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if (named := os.environ.get("SSL_CERT_FILE")) and not Path(named).is_file():
        raise RegistryError(f"SSL_CERT_FILE names {named}, which does not exist", "correct or unset it")
    paths = ssl.get_default_verify_paths()
    context = ssl.create_default_context(cafile=None if paths.cafile or paths.capath else _certifi())
    home = Path.home()
    for folder in (
        "/etc/docker/certs.d",
        "/etc/containers/certs.d",
        home / ".config/containers/certs.d",
        home / ".docker/certs.d",
    ):
        here = Path(folder) / host
        try:
            if not here.is_dir():
                continue
            for file in sorted(here.glob("*.crt")):
                context.load_verify_locations(file)
            for file in sorted(here.glob("*.cert")):
                context.load_cert_chain(file, file.with_suffix(".key"))
        except (OSError, ssl.SSLError) as e:
            raise RegistryError(
                f"a certificate in {here} cannot be used: {e}", "correct it, or let this user read it"
            ) from None
    return context


def _certifi() -> str:
    import certifi

    return certifi.where()


def _push(repo: str) -> Scopes:
    return frozenset({f"repository:{repo}:pull,push"})


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _read(response: httpx.Response) -> Answer:
    body = bytearray()
    for data in response.iter_raw():
        body += data
        if len(body) > LARGEST_ANSWER:
            raise RegistryError(
                f"{response.url.host} answers with more than {LARGEST_ANSWER >> 20} MiB",
                "is this a registry?",
            )
    return Answer(response.status_code, response.reason_phrase, response.headers, bytes(body), response.url)


def _drain(response: httpx.Response) -> None:
    """Reads a short body, so that the connection can be used again."""
    left = 1 << 16
    with contextlib.suppress(httpx.TransportError):
        for data in response.iter_raw():
            left -= len(data)
            if left < 0:
                return


def sha256(data: bytes) -> str:
    """The ``sha256:...`` digest of small data."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def parse_index(data: bytes, where: str) -> list[Descriptor]:
    """The entries of an image index.

    Raises:
        RegistryError: it is none.
    """
    try:
        return [Descriptor.from_json(entry) for entry in json.loads(data)["manifests"] or []]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RegistryError(
            f"{where}: the list of attached artifacts is damaged", "ask the registry's owner"
        ) from None


def _next_page(answer: Answer) -> str | None:
    match = re.match(r'\s*<([^>]+)>\s*;\s*rel="?next"?', answer.headers.get("Link", ""))
    return match[1] if match else None


def _retry_after(text: str) -> float | None:
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _range_end(text: str, default: int) -> int:
    """The bytes that a registry has, from its ``Range: 0-N`` (N is the last byte's index; ``0-0`` may mean none or one)."""
    match = re.fullmatch(r"(?:bytes=)?0-(\d+)", text.strip())
    if not match:
        return default
    return int(match[1]) + 1 if int(match[1]) else 0


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: Any = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
