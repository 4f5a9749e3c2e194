"""Requests to one registry: scheme, credentials, redirects, retries, limits. Safe for threads."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator

import httpx2

from builder.core.errors import RegistryError
from builder.core.progress import QUIET, Reporter
from builder.core.settings import Settings
from builder.formats.net.http import make_client
from builder.formats.net.proxies import is_loopback
from builder.formats.oci.reference import DOCKER_ALIASES, DOCKER_IO, check_repository

from .answer import BUSY, REDIRECTS, Answer, Busy, Request, Scopes, parse_url, read_answer
from .auth import Authenticator
from .credentials import Credentials, are_for, find_credentials
from .errors import connection_text, refusal_hint

log = logging.getLogger(__name__)

#: Attempts of a request, or of a transfer that gains no byte, before the command fails.
TRIES = 6
#: Seconds between two attempts, at most, whatever ``Retry-After`` states.
MAX_WAIT_S = 120.0
#: Seconds since the first failed attempt of the command that no answer followed, except that the
#: registry is busy. After them no request is repeated.
MAX_FAILING_S = 600.0
#: As many as clients in Go follow (net/http stops before the tenth).
MAX_REDIRECTS = 9
_CONNECTIONS = 32
#: Registries on object storage (distribution 2.8 with S3) answer the last PUT of a large blob only
#: after they have copied it, which takes minutes.
_TIMEOUT = httpx2.Timeout(300, connect=15, write=120, pool=None)


class Transport:
    """Sends requests to one registry.

    Plain http is used only for registries on this machine (Docker's rule).

    Args:
        host: ``host[:port]``; Docker Hub is ``docker.io``.
        credentials: None looks them up
            (:func:`builder.formats.registry.credentials.find_credentials`) when the registry asks.
        settings: its ``offline`` forbids registries on other machines.
        reporter: receives warnings.
        sleep: waits between attempts, in seconds.

    Raises:
        RegistryError: ``offline`` forbids this registry.
        FetchError: a certificate file or a proxy's variable is not usable.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials | None = None,
        *,
        settings: Settings | None = None,
        reporter: Reporter = QUIET,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self.host = DOCKER_IO if host in DOCKER_ALIASES else host
        """``host[:port]``; ``docker.io`` for Docker Hub."""
        #: Docker Hub's API has another name than its images.
        self._api_host = "registry-1.docker.io" if host in DOCKER_ALIASES else host
        self._loopback = is_loopback(self._api_host)
        offline = settings is not None and settings.offline
        if offline and not self._loopback:
            raise self.error(
                f"builder is offline, so {self.host} is not contacted",
                "leave out --offline and unset BUILDER_OFFLINE, or use an OCI layout: oci:DIR",
            )
        self._named = credentials
        self.reporter = reporter
        self._sleep = sleep
        self._lock = threading.Lock()
        self._scheme = ""
        self._reached = False
        self._failing_since = 0.0
        """The time (of time.monotonic) of the first failure since the last answer; 0: none."""
        self._has_asked = False
        """Whether a challenge would be known."""
        self._push_repositories: set[str] = set()
        self._found_credentials: dict[str, Credentials] = {}
        self._warned: set[str] = set()
        self._http = make_client(_CONNECTIONS, registry=self._api_host, timeout=_TIMEOUT)
        self._auth = Authenticator(
            self.host,
            self.ask,
            self.credentials,
            secure=lambda: self.scheme == "https",
            warn=self._warn_once,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # credentials ----------------------------------------------------------------------------------

    def credentials(self, repository: str) -> Credentials:
        """Return the credentials for when the registry asks; ANONYMOUS if none are known."""
        named = self._named
        if named is not None and are_for(named, self.host):
            return named
        if named is not None:
            self._warn_once(
                f"the credentials of {named.source} are for {named.host} (REGISTRY_HOST), "
                f"so they are not sent to {self.host}"
            )
        if repository not in self._found_credentials:
            found = find_credentials(self._api_host, repository, warn=self._warn_once)
            self._found_credentials[repository] = found
        return self._found_credentials[repository]

    def expect_push(self, repository: str) -> None:
        """Announce a push: one token with that permission is used for all requests."""
        check_repository(repository)
        self._push_repositories.add(repository)

    def pull_scopes(self, repository: str) -> Scopes:
        """Return the permission to read a repository, or to push to it (:meth:`expect_push`)."""
        if repository in self._push_repositories:
            return push_scopes(repository)
        return frozenset({f"repository:{repository}:pull"})

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self.reporter.warn(message)

    # requests -------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Answer:
        """Send a request with a small response; repeat it while the registry is busy or broken.

        Raises:
            RegistryError: the registry cannot be reached.
        """
        for failures in itertools.count(1):
            try:
                with self.open(request) as response:
                    return read_answer(response, request.most)
            except httpx2.RequestError as e:
                if not self.again(failures, e):
                    if isinstance(e, Busy):
                        return e.answer
                    raise self.unreachable(e, self._name_of(request.url)) from None
        raise AssertionError("the last attempt returns or raises")

    def again(self, failures: int, cause: Answer | Exception) -> bool:
        """Wait before the next attempt, or return False if it was the last: the rule for all requests.

        Before the first response the address may be wrong, and there is one attempt to connect.

        Args:
            failures: in a row, without a new byte of a blob.
            cause: the last of them.
        """
        self._failing_since = self._failing_since or time.monotonic()
        is_over = time.monotonic() - self._failing_since > MAX_FAILING_S
        is_wrong = isinstance(cause, httpx2.ConnectError | httpx2.TimeoutException)
        if failures >= TRIES or is_over or (is_wrong and not self._reached):
            return False
        self.pause(failures, cause)
        return True

    @contextlib.contextmanager
    def open(self, request: Request) -> Iterator[httpx2.Response]:
        """Send a request once, with credentials; follow redirects. The body is not read yet.

        Credentials are sent to the registry itself only. Where it redirects to (a bucket of S3 or
        Azure, with a signature in the URL) they would be disclosed, and S3 refuses requests with
        two kinds of authentication.

        Raises:
            httpx2.TransportError: the connection broke, or the registry is :class:`Busy`.
            RegistryError: a redirect is not allowed, or a page for people answers.
        """
        url, own = request.url, request.authorization
        challenges = redirects = 0
        while True:
            sent = own if _origin(url) == _origin(request.url) else None
            at_registry = own is None and _origin(url) == _origin(self.url("/"))
            if at_registry:
                sent = self._auth.header(request.scopes, request.repository)
            response = self._send(request, url, sent)
            try:
                self._reached = True
                if response.status_code in BUSY:
                    raise Busy(read_answer(response))
                self._failing_since = 0.0
                if at_registry and challenges < 2 and self._is_challenged(request, response, sent):
                    challenges += 1
                    read_answer(response)  # so that the connection can be used again
                    continue
                if _is_redirect(request, response):
                    redirects += 1
                    target = self.location(url, response.headers["Location"])
                    if redirects > MAX_REDIRECTS:
                        raise self.error(
                            f"{url.host} redirects to {target.scheme}://{target.host}{target.path}, "
                            f"which builder does not follow: it is redirect {redirects}",
                            "ask the registry's owner: its redirects form a loop",
                        )
                    url = target
                    read_answer(response)  # so that the connection can be used again
                    continue
                if _is_web_page(response) and "/referrers/" not in request.url.path:
                    page = f"{url.scheme}://{url.netloc.decode()}{url.path}"
                    message = (
                        f"{self._name_of(url)} answers with a web page, not a registry: {page}"
                    )
                    raise self.error(message, "correct HOST, or log in to the network in a browser")
                yield response
                return
            finally:
                response.close()

    def _is_challenged(self, request: Request, response: httpx2.Response, sent: str | None) -> bool:
        """Return whether to send a request again, with other credentials than ``sent``.

        Some registries hide from users who are not logged in what these may not read (403, 404),
        and challenge at ``/v2/`` only, where docker, skopeo and crane begin: it is asked once.
        """
        if response.status_code in (403, 404) and not self._has_asked:
            with self.open(Request("GET", self.url("/v2/"), authorization="")) as start:
                self._has_asked = True
                return self._is_challenged(request, start, sent)
        if response.status_code != 401:
            return False
        self._has_asked = True
        headers = response.headers.get_list("WWW-Authenticate")
        return self._auth.answer(headers, request.scopes, request.repository, sent)

    def _send(
        self, request: Request, url: httpx2.URL, authorization: str | None
    ) -> httpx2.Response:
        headers = dict(request.headers)
        if authorization:
            headers["Authorization"] = authorization
        content = request.body() if callable(request.body) else request.body
        prepared = self._http.build_request(request.method, url, headers=headers, content=content)
        # httpx2 would send a user of the URL in place of the header; clients in Go do not.
        auth = httpx2.Auth() if authorization else None
        return self._http.send(prepared, stream=True, auth=auth)

    def pause(self, failures: int, cause: Answer | Exception | str) -> None:
        """Wait before the next attempt: as ``Retry-After`` states, else 0.5, 1, 2 ... 30 s.

        ``cause`` may be a text: what other clients do.
        """
        cause = cause.answer if isinstance(cause, Busy) else cause
        wait, text = None, cause if isinstance(cause, str) else type(cause).__name__
        if isinstance(cause, Answer):
            wait, text = cause.retry_after, f"{cause.status} {cause.reason}"
        if wait is None:
            jitter = random.uniform(0.75, 1.25)  # noqa: S311 - no secret depends on it
            wait = min(0.5 * 2 ** (failures - 1), 30.0) * jitter
        wait = min(wait, MAX_WAIT_S)
        log.info("%s: %s; attempt %d in %.1f s", self.host, text, failures + 1, wait)
        self._sleep(wait)

    # addresses ------------------------------------------------------------------------------------

    @property
    def scheme(self) -> str:
        """``https``, or ``http`` for a registry on this machine that does not use TLS."""
        with self._lock:
            if not self._scheme:
                self._scheme = self._probe() if self._loopback else "https"
            return self._scheme

    def url(self, path: str) -> httpx2.URL:
        """Return the address of a path of the API (``/v2/...``)."""
        return httpx2.URL(f"{self.scheme}://{self._api_host}{path}")

    def request(
        self, method: str, repository: str, path: str, headers: dict[str, str] | None = None
    ) -> Request:
        """Return a request for something of a repository: ``blobs/DIGEST``."""
        check_repository(repository)
        url = self.url(f"/v2/{repository}/{path}")
        reads = method in ("GET", "HEAD")
        scopes = self.pull_scopes(repository) if reads else push_scopes(repository)
        return Request(method, url, scopes, repository, headers or {})

    def location(self, url: httpx2.URL, location: str) -> httpx2.URL:
        """Return the address in a ``Location`` or ``Link`` header of the response of ``url``.

        Registries behind a proxy that terminates TLS (distribution 2.8 without ``http.host``,
        Harbor without ``external_url``) send addresses with ``http:``; for the registry's own host
        they become ``https:``. No other address leads from https to http: a layer would be sent, or
        received, in clear.

        Raises:
            RegistryError: it is not a URL, or leads from https to http.
        """
        target = self._parse(location, url)
        base = self.url("/")
        if base.scheme == "https" and target.scheme == "http" and target.host == base.host:
            target = target.copy_with(scheme="https", port=base.port)
        if url.scheme == "https" and target.scheme != "https":
            address = f"http://{target.host}{target.path}"
            raise self.error(
                f"{url.host} sent the address {address}, which is not encrypted",
                "builder does not leave https: ask the registry's owner",
            )
        return target

    def next_page(self, answer: Answer) -> httpx2.URL | None:
        """Return the address of the next page of a list (``Link``); None on the last page.

        Only path and query of the ``Link`` header count, as in skopeo: a list is never continued
        on another host.

        Raises:
            RegistryError: it is not a URL.
        """
        link = re.match(r'\s*<([^>]+)>\s*;\s*rel="?next"?', answer.headers.get("Link", ""))
        if link is None:
            return None
        target = self._parse(link[1], answer.url)
        return self.url("/").copy_with(raw_path=target.raw_path)

    def _parse(self, address: str, base: httpx2.URL) -> httpx2.URL:
        try:
            return parse_url(address, base)
        except ValueError:
            message = f"{base.host} sent an address that is not a URL"
            hint = "this is a fault of the registry: try again later"
            raise self.error(message, hint) from None

    def _probe(self, failures: int = 0) -> str:
        """Return the scheme of a registry on this machine: ask over plain http, no credentials.

        A TLS server answers such a request with status 400 and a text (Go: "Client sent an HTTP
        request to an HTTPS server"; nginx: "The plain HTTP request was sent to HTTPS port"), with a
        redirect to https, or hangs up each time.
        """
        try:
            with self._http.stream("GET", f"http://{self._api_host}/v2/", timeout=15) as response:
                text = ""
                if response.status_code in REDIRECTS:
                    text = response.headers.get("Location", "")
                elif response.status_code == 400:
                    text = read_answer(response).body.decode(errors="replace")
        except httpx2.ConnectError as e:
            if ":" in self._api_host.rpartition("]")[2]:  # nothing listens at this port
                raise self.unreachable(e, self.host) from None
            return "https"
        except httpx2.TransportError as e:
            return self._probe(failures + 1) if self.again(failures + 1, e) else "https"
        self._reached = True
        return "https" if re.search(r"\bhttps\b", text, re.IGNORECASE) else "http"

    def _name_of(self, url: httpx2.URL) -> str:
        """Return the registry's name for messages, or the host that it redirected to."""
        return self.host if _origin(url) == _origin(self.url("/")) else url.netloc.decode()

    # errors ---------------------------------------------------------------------------------------

    def refusal(
        self, answer: Answer, action: str, kind: type[RegistryError] = RegistryError
    ) -> RegistryError:
        """Return the error for a refusal; ``action`` continues the sentence "HOST did not ..."."""
        details = [f"{code}: {text}" if text else code for code, text in answer.errors()]
        name = self._name_of(answer.url)
        elsewhere = name != self.host  # after a redirect, or for an upload
        at = f"{name} answered " if elsewhere else ""
        message = f"{self.host} did not {action}: {at}{answer.status} {answer.reason}"
        if details:
            message += f" ({'; '.join(details)})"
        hint = refusal_hint(answer, self.host, self._auth.used, elsewhere=elsewhere)
        return kind(message, hint, status=answer.status, codes=answer.codes(), host=self.host)

    def unreachable(self, error: Exception, where: str) -> RegistryError:
        """Return the error for a connection to ``where`` that failed, or for a busy registry."""
        if isinstance(error, Busy):
            return self.refusal(error.answer, f"return {where}")
        text, hint = connection_text(error, self.host)
        return self.error(f"cannot reach {where}: {text}", hint)

    def error(self, message: str, hint: str) -> RegistryError:
        """Return an error of this registry."""
        return RegistryError(message, hint, host=self.host)


def push_scopes(repository: str) -> Scopes:
    """Return the permission to read and write a repository."""
    return frozenset({f"repository:{repository}:pull,push"})


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _is_web_page(response: httpx2.Response) -> bool:
    """Return whether a page for people answers in place of a registry.

    Answers of Pulp without a body, and blobs of servers that guess types, may be called HTML, too,
    but have headers of a registry.
    """
    headers = response.headers
    is_registry = "Docker-Distribution-API-Version" in headers or "Docker-Content-Digest" in headers
    is_html = headers.get("Content-Type", "").lower().startswith("text/html")
    return response.status_code == 200 and is_html and not is_registry


def _is_redirect(request: Request, response: httpx2.Response) -> bool:
    """Return whether the request is sent again, unchanged, to the address in ``Location``.

    After 301, 302 and 303 clients in Go (docker, skopeo, crane) send a GET in place of a POST, PUT
    or PATCH, which stores nothing: builder reports them. An identity token is in a body, which only
    the token server may have.
    """
    reads = request.method in ("GET", "HEAD")
    repeats = response.status_code in (307, 308) and request.authorization is None
    repeats = repeats or (reads and response.status_code in REDIRECTS)
    return repeats and "Location" in response.headers
