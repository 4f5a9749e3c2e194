"""The fetched packages of one build: which reader reads each, and its cached index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from builder.errors import LayerError
from builder.layers.cache import index_path, read_index, write_index
from builder.layers.conda import CondaReader
from builder.layers.conda_activation import is_activation
from builder.layers.entry import Entry, LinkContext, PackageIndex, PackageReader
from builder.layers.wheel import WheelReader
from builder.model import Fetched, LockedPackage
from builder.store.blobs import Store


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
        self._store = store
        self._wheels = WheelReader()
        self._conda = CondaReader(tmpdir)
        if len(self._fetched) != len(self.locked):
            raise LayerError("a package appears twice in the lock", "lock again")

    def sizes(self) -> dict[str, int | None]:
        """Returns the bytes of the archives by package key."""
        return {key: f.size for key, f in self._fetched.items()}

    def index(self, package: LockedPackage) -> PackageIndex:
        """Returns the index of a package, from the cache if possible.

        Raises:
            LayerError: the archive is unsafe or damaged.
        """
        path = index_path(self._store, package, self.context)
        index = read_index(path)
        if index is None:
            index = self._reader(package).index(self._fetched[package.key], self.context)
            write_index(path, index)
        return index

    def entries(self, package: LockedPackage, leave_out: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Returns a package's members, see :class:`builder.layers.entry.PackageReader`."""
        return self._reader(package).entries(self._fetched[package.key], self.context, leave_out)

    def requires(self, package: LockedPackage) -> tuple[str, ...]:
        """Returns what a wheel's METADATA says that it needs, see :meth:`WheelReader.requires`."""
        return self._wheels.requires(self._fetched[package.key], self.context)

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
        return found

    def _reader(self, package: LockedPackage) -> PackageReader:
        return self._conda if package.manager == "conda" else self._wheels
