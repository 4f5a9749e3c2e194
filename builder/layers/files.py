"""The files of all packages of a build, and whose file is in the image where several packages contain it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property

from builder.layers.conflicts import Resolution, resolve_conflicts
from builder.layers.entry import PackageIndex
from builder.layers.packages import Packages
from builder.model import LockedPackage
from builder.parallel import in_parallel
from builder.progress import QUIET, Reporter, working

_TASK = "reading packages"


class PackageFiles:
    """What the stages of a build know about the files of its packages.

    Each answer is computed when it is first needed, and once: a build that finds all its layers in the cache
    reads no package.

    Args:
        packages: the packages of the build.
        jobs: the largest number of threads.
        reporter: receives the progress.
    """

    def __init__(self, packages: Packages, jobs: int, reporter: Reporter = QUIET) -> None:
        self.packages = packages
        self._jobs = jobs
        self._reporter = reporter

    @cached_property
    def indexes(self) -> Mapping[str, PackageIndex]:
        """The files of each package, by its key.

        Raises:
            LayerError: a package is unsafe or damaged.
        """

        def read(package: LockedPackage) -> PackageIndex:
            index = self.packages.index(package)
            self._reporter.advance(_TASK, 1)
            return index

        locked = self.packages.locked
        self.packages.prepare_indexes()
        with working(self._reporter, _TASK, len(locked), "packages"):
            found = in_parallel(read, locked, self._jobs, threading.Event())
        return {package.key: index for package, index in found}

    @cached_property
    def resolution(self) -> Resolution:
        """The decided conflicts. pip's order needs the metadata of all wheels, so it is used only where two
        wheels contain the same file.

        Raises:
            LayerError: packages cannot share an environment, or one is unsafe or damaged.
        """
        packages = self.packages

        def resolved(ordered: Sequence[LockedPackage]) -> Resolution:
            return resolve_conflicts(ordered, self.indexes, packages.link_target, packages.context.prefix)

        resolution = resolved(packages.locked)
        pip = [package for package in packages.locked if package.manager == "pip"]
        names = {package.name for package in pip}
        if not any(len(names & {c.winner, *c.losers}) > 1 for c in resolution.conflicts):
            return resolution
        from builder.layers.pip_order import pip_order  # with packaging, which few builds need

        conda = [package for package in packages.locked if package.manager == "conda"]
        return resolved([*conda, *pip_order(pip, packages.requires(pip), packages.context)])
