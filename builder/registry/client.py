"""One registry: its manifests and tags, its blobs, and who uses it.

All methods may be called from several threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from builder.progress import QUIET, Reporter
from builder.registry.blobs import Blobs
from builder.registry.credentials import Credentials
from builder.registry.manifests import Manifests
from builder.registry.transport import Transport
from builder.settings import Settings


class RegistryClient:
    """One registry. Use as a context manager, or call :meth:`close`.

    Args:
        host: ``host[:port]``; Docker Hub is ``docker.io``.
        credentials: None looks them up (:func:`builder.registry.credentials.find_credentials`) when
            the registry asks.
        settings: its ``offline`` forbids registries on other machines.
        reporter: receives warnings.
        sleep: waits between attempts, in seconds.

    Raises:
        RegistryError: ``offline`` forbids this registry, or a certificate file cannot be read.
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
        self._transport = Transport(host, credentials, settings, reporter, sleep)
        self.manifests = Manifests(self._transport)
        self.blobs = Blobs(self._transport)

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RegistryClient({self.host!r})"

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    @property
    def host(self) -> str:
        """``host[:port]``; ``docker.io`` for Docker Hub."""
        return self._transport.host

    @property
    def plain_http(self) -> bool:
        """Whether the registry is used without TLS."""
        return self._transport.scheme == "http"

    def credentials(self, repo: str) -> Credentials:
        """Return the credentials for when the registry asks; ANONYMOUS if none are known."""
        return self._transport.credentials(repo)

    def expect_push(self, repo: str) -> None:
        """Announce a push: one token with that permission is used for all requests."""
        self._transport.expect_push(repo)

    def pause(self, failures: int, cause: str) -> None:
        """Wait before a request is repeated because of other clients: 0.5, 1, 2 ... 30 s."""
        self._transport.pause(failures, cause)
