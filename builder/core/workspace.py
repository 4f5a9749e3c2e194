"""What every stage works with: the settings, the cache, and who hears of the progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .progress import QUIET, Reporter
from .settings import Settings
from .store.blobs import Store


@dataclass(frozen=True, slots=True)
class Workspace:
    """The settings, the cache and the reporter of a command."""

    settings: Settings
    store: Store
    reporter: Reporter = QUIET

    @classmethod
    def of(cls, settings: Settings, reporter: Reporter = QUIET) -> Workspace:
        """Return the workspace with the cache that the settings name."""
        return cls(settings, Store(settings.cache), reporter)

    def quiet(self) -> Workspace:
        """Return the same workspace without reports of progress."""
        return replace(self, reporter=QUIET)
