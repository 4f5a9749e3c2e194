"""The fetched packages of one build: their files, and whose file is in the image where several contain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from builder.errors import LayerError
from builder.layers.cache import index_path, installed_record_path, read_index, requires_path, write_index
from builder.layers.conda_activation import is_activation
from builder.layers.conflicts import Resolution, resolve_conflicts
from builder.layers.entry import Entry, Inline, LinkContext, PackageIndex, PackageReader
from builder.model import Fetched, LockedPackage
from builder.parallel import in_parallel
from builder.progress import QUIET, Reporter, working
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import read_record, write_record

if TYPE_CHECKING:
    from builder.layers.conda import CondaReader
    from builder.layers.wheel import WheelReader


_TASK = "reading packages"


class Packages:
    """The packages of one build, in link order. Safe in any thread.

    Indexes and conflicts are computed when they are first needed, and once: a build that finds all its layers
    in the cache reads no package.

    Args:
        fetched: the packages in link order.
        context: where and for which Python they are installed.
        store: caches their indexes.
        settings: the number of threads, and where conda packages are unpacked while their layer is written.
        reporter: receives the progress.

    Raises:
        LayerError: a package appears twice.
    """

    def __init__(
        self,
        fetched: Sequence[Fetched],
        context: LinkContext,
        store: Store,
        settings: Settings,
        reporter: Reporter = QUIET,
    ) -> None:
        self.locked = [f.package for f in fetched]
        """In link order."""
        self.context = context
        self._fetched = {f.package.key: f for f in fetched}
        self._store = store
        self._settings = settings
        self._reporter = reporter
        if len(self._fetched) != len(self.locked):
            raise LayerError("a package appears twice in the lock", "lock again")

    @property
    def sizes(self) -> dict[str, int | None]:
        """The bytes of the archives by package key."""
        return {key: f.size for key, f in self._fetched.items()}

    @cached_property
    def indexes(self) -> Mapping[str, PackageIndex]:
        """The files of each package, by its key; from the cache if possible.

        Raises:
            LayerError: a package is unsafe or damaged.
        """

        def read(package: LockedPackage) -> PackageIndex:
            index = self._index(package)
            self._reporter.advance(_TASK, 1)
            return index

        with working(self._reporter, _TASK, len(self.locked), "packages"):
            found = in_parallel(read, self.locked, self._settings.jobs)
        return {package.key: index for package, index in found}

    def _index(self, package: LockedPackage) -> PackageIndex:
        path = index_path(self._store, package, self.context)
        index = read_index(path, self._store)
        if index is None:
            index = self._reader(package).index(self._fetched[package.key], self.context)
            write_index(path, index)
        return index

    @cached_property
    def resolution(self) -> Resolution:
        """The decided conflicts. pip's order needs the metadata of all wheels, so it is used only where two
        wheels contain the same file.

        Raises:
            LayerError: packages cannot share an environment, or one is unsafe or damaged.
        """

        def resolved(ordered: Sequence[LockedPackage]) -> Resolution:
            return resolve_conflicts(ordered, self.indexes, self.link_target, self.context.prefix)

        resolution = resolved(self.locked)
        pip = [package for package in self.locked if package.manager == "pip"]
        names = {package.name for package in pip}
        if not any(len(names & {c.winner, *c.losers}) > 1 for c in resolution.conflicts):
            return resolution
        from builder.layers.pip_order import pip_order  # with packaging, which few builds need

        conda = [package for package in self.locked if package.manager == "conda"]
        return resolved([*conda, *pip_order(pip, self.requires(pip), self.context)])

    def entries(self, package: LockedPackage, leave_out: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Returns a package's members, see :class:`builder.layers.entry.PackageReader`."""
        return self._reader(package).entries(self._fetched[package.key], self.context, leave_out)

    def requires(self, wheels: Sequence[LockedPackage]) -> dict[str, tuple[str, ...]]:
        """Returns what the METADATA of each wheel needs, by package key; see :meth:`WheelReader.requires`."""
        found = {}
        for package in wheels:
            path = requires_path(self._store, package)
            known = read_record(path)
            if known is None:
                known = self._wheels.requires(self._fetched[package.key], self.context)
                write_record(path, known)
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
        data = read_record(path)
        if data is None:
            for _ in self.entries(package):
                pass
            data = read_record(path)
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

    @property
    def with_activation(self) -> list[Fetched]:
        """The conda packages that have activation scripts, in link order."""
        root = self.context.prefix.strip("/") + "/"
        found = []
        for p in self.locked:
            paths = (e.path.removeprefix(root) for e in self.indexes[p.key].entries)
            if p.manager == "conda" and any(map(is_activation, paths)):
                found.append(self._fetched[p.key])
        return found

    # Readers of archives, with what they import: a build with nothing changed reads none.

    @cached_property
    def _wheels(self) -> WheelReader:
        from builder.layers.wheel import WheelReader

        return WheelReader(self._keep_record)

    @cached_property
    def _conda(self) -> CondaReader:
        from builder.layers.conda import CondaReader

        return CondaReader(self._settings.tmpdir, self._keep_record)

    def _reader(self, package: LockedPackage) -> PackageReader:
        return self._conda if package.manager == "conda" else self._wheels
