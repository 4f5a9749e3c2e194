"""The fetched packages of a build: their files, and which package wins a contested path."""

from __future__ import annotations

import importlib
import logging
import posixpath
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from builder.core.errors import LayerError
from builder.core.model import Fetched, LockedPackage
from builder.core.parallel import in_parallel
from builder.core.progress import working
from builder.core.store.records import Record
from builder.core.workspace import Workspace

from . import bounds
from .cache import declared_record, package_key
from .conflicts import Resolution, resolve_conflicts
from .entry import Entry, Inline, LinkContext, PackageIndex

log = logging.getLogger(__name__)

_TASK = "reading packages"
#: The list of the files of a distribution.
_RECORD = re.compile(r"(?P<site>.*)/(?P<name>[^/]+)-[^/-]+\.dist-info/RECORD", re.DOTALL)
#: Returns the archives of packages, in their order.
Fetch = Callable[[Sequence[LockedPackage]], Sequence[Fetched]]


class Packages:
    """The packages of one build, in link order. Safe in any thread.

    Indexes and conflicts are computed when they are first needed, and once. An archive is fetched
    when something reads it: a build that finds all its layers in the cache needs none.

    Args:
        locked: the packages in link order.
        context: where and for which Python they are installed.
        work: caches indexes; has the number of threads, and the folder where conda packages are
            unpacked while their layer is written.
        fetch: returns the archives of packages, in their order; missing ones are downloaded.

    Raises:
        LayerError: a package appears twice.
    """

    def __init__(
        self, locked: Sequence[LockedPackage], context: LinkContext, work: Workspace, fetch: Fetch
    ) -> None:
        self.locked = list(locked)
        """In link order."""
        self.context = context
        self.work = work
        self._fetch = fetch
        self._fetched: dict[str, Fetched] = {}
        self._fetching = threading.Lock()
        if len({package.key for package in locked}) != len(self.locked):
            raise LayerError("a package appears twice in the lock", "lock again")

    def fetch(self, packages: Sequence[LockedPackage]) -> None:
        """Fetch the archives of packages that will be read, all at once.

        Raises:
            FetchError, SpaceError: a download failed.
        """
        with self._fetching:
            missing = {p.key: p for p in packages if p.key not in self._fetched}
            if missing:
                # One thread imports the readers: of a module that two threads import at once, one may
                # get a part (Python 3.11 breaks the deadlock of their import locks so).
                for reader in ("conda", "wheel", "inside"):
                    importlib.import_module(f"builder.formats.layers.{reader}")
                fetched = self._fetch([*missing.values()])
                self._fetched |= {one.package.key: one for one in fetched}

    def _archive(self, package: LockedPackage) -> Fetched:
        self.fetch([package])
        return self._fetched[package.key]

    @cached_property
    def indexes(self) -> Mapping[str, PackageIndex]:
        """The files of each package, by its key; from the cache if possible.

        Raises:
            LayerError: a package is unsafe or damaged.
            FetchError: an archive that has to be read is not available.
        """
        known = {p.key: self.index_record(p).read() for p in self.locked}
        missing = [package for package in self.locked if known[package.key] is None]
        self.fetch(missing)

        def read(package: LockedPackage) -> PackageIndex:
            index = self._read_index(package)
            self.work.reporter.advance(_TASK, 1)
            return index

        with working(self.work.reporter, _TASK, len(missing), "packages"):
            found = in_parallel(read, missing, self.work.settings.jobs)
        indexes = known | {package.key: index for package, index in found}
        return {key: index for key, index in indexes.items() if index is not None}

    def index_record(self, package: LockedPackage) -> Record[PackageIndex]:
        """Return the cache's record of a package's index."""
        store = self.work.store
        path = store.folders.index / f"{package_key(package, self.context)}.json"
        return store.record(path, PackageIndex)

    def _read_index(self, package: LockedPackage) -> PackageIndex:
        """Read the index of a package from its archive, and record it."""
        fetched = self._archive(package)
        # readers of archives are imported here: a build with nothing changed reads none
        from .conda import conda_index
        from .inside import declared
        from .wheel import wheel_index

        read = conda_index if package.manager == "conda" else wheel_index
        index = read(fetched, self.context)
        declared_record(package, self.work.store).write(declared(fetched, index))  # for the SBOM
        self.index_record(package).write(index)
        return index

    @cached_property
    def resolution(self) -> Resolution:
        """The decided conflicts. pip's order is used where two wheels contain the same file.

        Raises:
            LayerError: packages cannot share an environment, or one is unsafe or damaged.
        """

        removed = dict(self._removed())

        def resolved(ordered: Sequence[LockedPackage]) -> Resolution:
            prefix = self.context.prefix
            return resolve_conflicts(ordered, self.indexes, self.link_target, prefix, removed)

        resolution = resolved(self.locked)
        pip = [package for package in self.locked if package.manager == "pip"]
        names = {package.name for package in pip}
        if not any(len(names & {c.winner, *c.losers}) > 1 for c in resolution.conflicts):
            return resolution
        from .pip_order import pip_order  # with packaging, which few builds need

        log.info("wheels contain the same file: the last one in pip's order of installation wins")

        conda = [package for package in self.locked if package.manager == "conda"]
        requires = {package.key: self.indexes[package.key].requires for package in pip}
        return resolved([*conda, *pip_order(pip, requires, self.context)])

    def _removed(self) -> Iterator[tuple[str, set[str]]]:
        """Yield by its key each conda package whose distribution is also a wheel's, with its files.

        They are those of its RECORD, which pip removes before it installs another version.
        """
        from packaging.utils import canonicalize_name

        wheels = {canonicalize_name(p.name) for p in self.locked if p.manager == "pip"}
        for package in self.locked if wheels else ():
            paths = [e.path for e in self.indexes[package.key].entries]
            found = [_RECORD.fullmatch(path) for path in paths if path.endswith("/RECORD")]
            sites = {m[0]: m["site"] for m in found if m and canonicalize_name(m["name"]) in wheels}
            if package.manager == "pip" or not sites:
                continue
            self.work.reporter.warn(f"a wheel replaces {package.name} {package.version} of conda")
            yield package.key, set(map(posixpath.normpath, self._recorded(package, sites)))

    def _recorded(self, package: LockedPackage, sites: Mapping[str, str]) -> Iterator[str]:
        """Yield the files that RECORDs of a package list; ``sites`` has their folders."""
        from .content import read_whole  # with readers of archives, as in _read_index
        from .zips import check_size

        for record in self.entries(package):
            if record.path in sites:
                check_size(package, record.path, record.size, bounds.MAX_LISTING)
                rows = read_whole(record).decode("utf-8", "replace").splitlines()
                yield from (f"{sites[record.path]}/{row.partition(',')[0]}" for row in rows)

    def entries(
        self, package: LockedPackage, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[Entry]:
        """Yield a package's members in the order of its index, without the paths in ``leave_out``.

        Raises:
            LayerError: the archive is unsafe or damaged.
        """
        fetched = self._archive(package)
        if package.manager == "conda":
            from .conda import conda_entries

            entries = conda_entries(fetched, self.context, self.work.settings.tmpdir, leave_out)
        else:
            from .wheel import wheel_entries

            entries = wheel_entries(fetched, self.context, leave_out)
        record = self.indexes[package.key].entries[-1].path
        for entry in entries:
            if entry.path == record:
                assert isinstance(entry.content, Inline)
                content = entry.content.data.decode()
                self.installed_record(package).write({"path": record, "content": content})
            yield entry

    def record(self, package: LockedPackage) -> tuple[str, bytes]:
        """Return image path and content of a package's RECORD, or its record in conda-meta.

        The record of a conda package has the hashes of its installed files. So it is cached when
        the package's layer is written; the package is read again only if the cache has lost it.

        Raises:
            LayerError: the archive is unsafe or damaged.
        """
        record = self.installed_record(package)
        data = record.read()
        if data is None:
            for _ in self.entries(package):
                pass
            data = record.read()
        if data is None:
            hint = "check the disk of the cache (BUILDER_CACHE)"
            raise LayerError(f"{record.path} cannot be read", hint)
        return data["path"], data["content"].encode()

    def installed_record(self, package: LockedPackage) -> Record[dict[str, str]]:
        """Return the cache's record of a package's RECORD, or of its record in conda-meta."""
        store = self.work.store
        path = store.folders.index / f"{package_key(package, self.context)}-record.json"
        return store.record(path, dict[str, str])

    def link_target(self, package: LockedPackage, path: str) -> str:
        """Return the text of a package's symlink.

        Raises:
            LayerError: the package has no such symlink.
        """
        for entry in self.entries(package):
            if entry.path == path:
                return entry.target
        hint = "the package is damaged: fetch it again"
        raise LayerError(f"{package.filename}: no link at {path}", hint)
