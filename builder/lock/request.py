"""The request to the solvers of conda and pip packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from builder.config.recipe import Recipe
from builder.lock.spec import Environment, SourceSpec
from builder.model import LockedBase, LockedPackage, LockedSource
from builder.progress import QUIET, Reporter
from builder.settings import Settings


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
    """Builds wheels from sources in the image of a target; :mod:`builder.wheels` has the implementation."""

    def name_of(self, source: SourceSpec) -> str | None:
        """The normalised name that a folder of the project declares; None if it declares none.

        None also for a source that is not on this machine. Raises nothing.
        """

    def build(
        self,
        source: SourceSpec,
        packages: Sequence[LockedPackage],
        previous: LockedPackage | None = None,
    ) -> BuiltWheel:
        """Returns the wheel of a source, built or from the cache.

        Args:
            source: what the wheel is built from.
            packages: the packages of the image; which of them the build sees depends on the recipe.
            previous: the package of an earlier lock: its wheel is used again if its source has not changed.

        Raises:
            WheelError: the build failed, or the wheel that it made is not usable.
            FetchError: the source or a build requirement is not available.
        """
