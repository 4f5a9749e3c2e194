"""One registry: its manifests and tags, its blobs, and who uses it.

All methods may be called from several threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from builder.core.progress import QUIET, Reporter
from builder.core.settings import Settings

from .blobs import Blobs
from .credentials import Credentials
from .manifests import Manifests
from .transport import Transport


class RegistryClient(Transport):
    """The transport of one registry, with its manifests and blobs.

    Use it as a context manager, or call :meth:`close`.

    Args:
        host: ``host[:port]``; Docker Hub is ``docker.io``.
        credentials: None looks them up
        (:func:`builder.formats.registry.credentials.find_credentials`) when
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
        super().__init__(host, credentials, settings, reporter, sleep)
        self.settings = settings
        self.manifests = Manifests(self)
        self.blobs = Blobs(self)

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RegistryClient({self.host!r})"

    @property
    def plain_http(self) -> bool:
        """Whether the registry is used without TLS."""
        return self.scheme == "http"
