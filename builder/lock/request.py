"""Requests for locks: the lock of a target, the packages of a solver, the wheel of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from builder.core.model import Lock, LockedBase, LockedPackage, LockedSource
from builder.core.progress import QUIET, Reporter
from builder.core.settings import Settings
from builder.core.stages import LockOptions

from .config.recipe import Recipe
from .inputs import Inputs
from .spec import Environment, SourceSpec


@dataclass(frozen=True, slots=True)
class LockRequest:
    """The lock of one target, for the function that makes it.

    That is :func:`builder.lock.solve.lock_target`, :func:`builder.lock.imported.import_lock` or
    :func:`builder.lock.condalock.conda_lock_target`. Each of them writes nothing.
    """

    inputs: Inputs
    settings: Settings
    """Cache, mirrors, and whether to work offline."""
    base: LockedBase | None = None
    """The base image that the lock pins; None if it is resolved later. If it has ``python``, this
    replaces the conda packages."""
    previous: Lock | None = None
    """An earlier lock; its packages stay where the sources allow."""
    options: LockOptions = LockOptions()
    """``update`` names conda or pip packages in ``previous``, no OS packages."""
    wheel_builder: WheelBuilder | None = None
    """Builds the wheels of source packages; None: these are errors."""
    reporter: Reporter = QUIET
    """Receives progress and warnings."""


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """One environment to solve for one target."""

    recipe: Recipe
    environment: Environment
    settings: Settings
    newest: datetime | None = None
    """Packages published later are ignored; None takes all."""
    previous: Sequence[LockedPackage] = ()
    """The packages of an earlier lock: they stay where the specs allow."""
    update: frozenset[str] = frozenset()
    """Names of ``previous`` that move to the newest version; others change only if they have to."""
    reporter: Reporter = QUIET
    base: LockedBase | None = None
    """The base that the lock pins. Its ``python``, if it has one, replaces the conda packages."""


@dataclass(frozen=True, slots=True)
class BuiltWheel:
    """A wheel that was built from a source."""

    path: Path
    """In the store, under its digest."""
    filename: str
    name: str
    """Normalised as PEP 503 says."""
    version: str
    sha256: str
    """64 lower-case hex digits."""
    locked: LockedSource
    """The source, with ``build``."""


class WheelBuilder(Protocol):
    """Builds wheels from sources in the image of a target; :mod:`builder.build.wheels` has the
    implementation.
    """

    def name_of(self, source: SourceSpec) -> str | None:
        """Return the normalised name that a folder of the project declares; None if none.

        None also for a source that is not on this machine. Raises nothing.
        """

    def build(self, source: SourceSpec, packages: Sequence[LockedPackage]) -> BuiltWheel:
        """Return the wheel of a source, built or from the cache.

        Args:
            source: what the wheel is built from.
            packages: the packages of the image; which of them the build sees depends on the recipe.

        Raises:
            WheelError: the build failed, or the wheel that it made is not usable.
            FetchError: the source or a build requirement is not available.
        """
