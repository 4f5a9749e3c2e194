"""One registry: its manifests and tags, its blobs, and who uses it.

All methods may be called from several threads at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property

from .blobs import Blobs
from .manifests import Manifests
from .transport import Transport


class RegistryClient(Transport, AbstractContextManager["RegistryClient"]):
    """The transport of one registry, with its manifests and blobs.

    Use it as a context manager, or call :meth:`close`.
    """

    @cached_property
    def manifests(self) -> Manifests:
        """The manifests and tags of the registry."""
        return Manifests(self)

    @cached_property
    def blobs(self) -> Blobs:
        """The blobs of the registry."""
        return Blobs(self)

    def __exit__(self, *exc: object) -> None:
        self.close()
