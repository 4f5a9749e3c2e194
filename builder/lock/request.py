"""The request to the solvers of conda and pip packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from builder.config.recipe import Recipe
from builder.lock.spec import Environment
from builder.model import LockedPackage
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
