"""Archives that are fetched when they are needed: with a shared cache most layers need none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from builder.model import Fetched, LockedPackage

#: Returns the archives of packages, in their order.
Fetch = Callable[[list[LockedPackage]], Sequence[Fetched]]


class LazyArchive(Fetched):
    """An archive that is fetched when its path or size is first read. See :func:`require_archives`."""

    __slots__ = ("_archives",)
    _archives: _Archives

    def __init__(self, package: LockedPackage, archives: _Archives) -> None:
        object.__setattr__(self, "package", package)
        object.__setattr__(self, "_archives", archives)

    @property
    def path(self) -> Path:
        return self._archives.get(self.package).path

    @property
    def size(self) -> int:
        return self._archives.get(self.package).size

    def __repr__(self) -> str:
        return f"LazyArchive({self.package.filename!r})"


class _Archives:
    """The archives of one build."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._found: dict[str, Fetched] = {}
        self._lock = threading.Lock()

    def get(self, package: LockedPackage) -> Fetched:
        self.require([package])
        return self._found[package.key]

    def require(self, packages: Iterable[LockedPackage]) -> None:
        with self._lock:
            missing = {p.key: p for p in packages if p.key not in self._found}
            if missing:
                found = self._fetch(list(missing.values()))
                self._found.update(zip(missing, found, strict=True))


def lazy_archives(packages: Iterable[LockedPackage], fetch: Fetch) -> tuple[Fetched, ...]:
    """Returns archives that ``fetch`` provides when they are needed."""
    archives = _Archives(fetch)
    return tuple(LazyArchive(package, archives) for package in packages)


def require_archives(fetched: Iterable[Fetched]) -> None:
    """Fetches those archives of one build that are not fetched yet, at once instead of one by one.

    Raises:
        FetchError, SpaceError: a download failed.
    """
    lazy = [item for item in fetched if isinstance(item, LazyArchive)]
    if lazy:
        lazy[0]._archives.require(item.package for item in lazy)
