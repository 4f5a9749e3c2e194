"""Opens a source of any kind as an unpacked tree in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.lock.spec import SourceSpec
from builder.model import LockedSource
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store.blobs import Store


@dataclass(frozen=True, slots=True)
class SourceTree:
    """An unpacked source, which the caller may change."""

    path: Path
    """The folder of the package: the one with pyproject.toml or setup.py."""
    locked: LockedSource
    """The pinned source; ``build`` is empty."""
    root: Path
    """The whole tree: ``path``, or a folder above it where the source names a subdirectory."""


@contextmanager
def open_source(
    spec: SourceSpec,
    root: Path,
    settings: Settings,
    store: Store,
    reporter: Reporter = QUIET,
    pinned: LockedSource | None = None,
) -> Iterator[SourceTree]:
    """Unpacks a source into a temporary folder, which is removed at the end.

    Args:
        spec: the source.
        root: the project folder, to which the paths of local sources are relative.
        settings: cache, mirrors, and whether to work offline.
        store: where downloads are stored.
        reporter: receives progress and notices.
        pinned: the source of a lock, which has to be opened exactly; None: what ``spec`` names today.

    Raises:
        FetchError: the source is not available, or is not the pinned one.
        ConfigError: a local source does not exist or holds no package.
    """
    raise NotImplementedError
    yield
