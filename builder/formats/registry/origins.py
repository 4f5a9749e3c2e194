"""Clients of the registries that an image's layers come from."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from builder.core.errors import RegistryError
from builder.core.model import Layer
from builder.core.progress import Reporter
from builder.core.settings import Settings

from .client import RegistryClient


class Origins(ExitStack):
    """Creates one client per registry when it is needed; a context manager, safe for threads.

    Args:
        settings: its ``offline`` forbids registries on other machines.
        reporter: receives warnings.
        client: an open client, used for layers on that client's host; it stays open.
    """

    def __init__(
        self, settings: Settings | None, reporter: Reporter, client: RegistryClient | None
    ) -> None:
        super().__init__()
        self._settings = settings
        self._reporter = reporter
        self._clients = {client.host: client} if client is not None else {}
        self._lock = threading.Lock()

    def client_of(self, layer: Layer) -> tuple[RegistryClient, str]:
        """Return the client and the repository of a layer that is not on this machine.

        Raises:
            RegistryError: the layer has no origin, or ``offline`` forbids its registry.
        """
        host, _, repository = layer.origin.partition("/")
        if not repository:
            raise RegistryError(
                f"the layer {layer.descriptor.digest} is neither on this machine nor in a registry",
                "build again",
            )
        with self._lock:
            if host not in self._clients:
                client = RegistryClient(host, settings=self._settings, reporter=self._reporter)
                self._clients[host] = self.enter_context(client)
            return self._clients[host], repository
