"""The fetched packages of one build: which reader reads each, and its cached index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import LayerError
from builder.layers.archives import require_archives
from builder.layers.cache import index_path, installed_record_path, read_index, requires_path, write_index
from builder.layers.conda_activation import is_activation
from builder.layers.entry import Entry, Inline, LinkContext, PackageIndex, PackageReader
from builder.model import Fetched, LockedPackage
from builder.store.blobs import Store
from builder.store.records import write_record

if TYPE_CHECKING:
    from builder.layers.conda import CondaReader
    from builder.layers.wheel import WheelReader


class Packages:
    """The packages of one build, in link order. Safe in any thread.

    Args:
        fetched: the packages in link order.
        context: where and for which Python they are installed.
        store: caches their indexes.
        tmpdir: where conda packages are unpacked while their layer is written.

    Raises:
        LayerError: a package appears twice.
    """

    def __init__(self, fetched: Sequence[Fetched], context: LinkContext, store: Store, tmpdir: Path) -> None:
        self.locked = [f.package for f in fetched]
        """In link order."""
        self.context = context
        self._fetched = {f.package.key: f for f in fetched}
        self._indexes: dict[str, PackageIndex] = {}
        self._store = store
        self._tmpdir = tmpdir
        if len(self._fetched) != len(self.locked):
            raise LayerError("a package appears twice in the lock", "lock again")

    def sizes(self) -> dict[str, int | None]:
        """Returns the bytes of the archives by package key; :meth:`index` knows those of its packages."""
        known = {key: index.archive for key, index in self._indexes.items()}
        return {key: known.get(key) or f.size for key, f in self._fetched.items()}

    def require(self, packages: Iterable[LockedPackage]) -> None:
        """Fetches the archives of packages that are read next, see :mod:`builder.layers.archives`."""
        require_archives(self._fetched[package.key] for package in packages)

    def prepare_indexes(self) -> None:
        """Looks up the indexes of all packages in a shared cache, and fetches the other archives."""
        paths = {index_path(self._store, package, self.context): package for package in self.locked}
        self._store.prefetch(list(paths))
        self.require(package for path, package in paths.items() if not path.exists())

    def index(self, package: LockedPackage) -> PackageIndex:
        """Returns the index of a package, from the cache if possible. It is read once.

        Raises:
            LayerError: the archive is unsafe or damaged.
        """
        index = self._indexes.get(package.key)
        if index is not None:
            return index
        path = index_path(self._store, package, self.context)
        index = read_index(path, self._store)
        if index is None:
            fetched = self._fetched[package.key]
            index = replace(self._reader(package).index(fetched, self.context), archive=fetched.size)
            write_index(path, index)
        self._indexes[package.key] = index
        return index

    def entries(self, package: LockedPackage, leave_out: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Returns a package's members, see :class:`builder.layers.entry.PackageReader`."""
        return self._reader(package).entries(self._fetched[package.key], self.context, leave_out)

    def requires(self, wheels: Sequence[LockedPackage]) -> dict[str, tuple[str, ...]]:
        """Returns what the METADATA of each wheel needs, by package key; see :meth:`WheelReader.requires`."""
        paths = {package.key: requires_path(self._store, package) for package in wheels}
        self._store.prefetch(list(paths.values()))
        self.require(package for package in wheels if not paths[package.key].exists())
        found = {}
        for package in wheels:
            known = self._store.recall(paths[package.key])
            if known is None:
                known = self._wheels.requires(self._fetched[package.key], self.context)
                write_record(paths[package.key], known)
            found[package.key] = tuple(known)
        return found

    def record(self, package: LockedPackage) -> tuple[str, bytes]:
        """Returns the image path and the content of a package's RECORD, or of its record in conda-meta.

        The record of a conda package has the hashes of its installed files. So it is cached when the
        package's layer is written; the package is read again only if the cache has lost it.

        Raises:
            LayerError: the archive is unsafe or damaged.
        """
        path = installed_record_path(self._store, package, self.context)
        data = self._store.recall(path)
        if data is None:
            for _ in self.entries(package):
                pass
            data = self._store.recall(path)
        if data is None:
            raise LayerError(f"{path} cannot be read", "check the disk of the cache (BUILDER_CACHE)")
        return data["path"], data["content"].encode()

    def _keep_record(self, fetched: Fetched, record: Entry) -> None:
        assert isinstance(record.content, Inline)
        path = installed_record_path(self._store, fetched.package, self.context)
        write_record(path, {"path": record.path, "content": record.content.data.decode()})

    def link_target(self, package: LockedPackage, path: str) -> str:
        """Returns the text of a package's symlink.

        Raises:
            LayerError: the package has no such symlink.
        """
        for entry in self.entries(package):
            if entry.path == path:
                return entry.target
        raise LayerError(f"{package.filename}: no link at {path}", "the package is damaged: fetch it again")

    def with_activation(self, indexes: Mapping[str, PackageIndex]) -> list[Fetched]:
        """Returns the conda packages that have activation scripts, in link order.

        Args:
            indexes: by package key.
        """
        root = self.context.prefix.strip("/") + "/"
        found = []
        for p in self.locked:
            paths = (e.path.removeprefix(root) for e in indexes[p.key].entries)
            if p.manager == "conda" and any(map(is_activation, paths)):
                found.append(self._fetched[p.key])
        require_archives(found)
        return found

    # Readers of archives, with what they import: a build with nothing changed reads none.

    @cached_property
    def _wheels(self) -> WheelReader:
        from builder.layers.wheel import WheelReader

        return WheelReader(self._keep_record)

    @cached_property
    def _conda(self) -> CondaReader:
        from builder.layers.conda import CondaReader

        return CondaReader(self._tmpdir, self._keep_record)

    def _reader(self, package: LockedPackage) -> PackageReader:
        return self._conda if package.manager == "conda" else self._wheels
