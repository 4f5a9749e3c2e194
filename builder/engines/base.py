"""What all engines share: the request, the one result record, and how they run a program and say why it failed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from builder.config.recipe import Recipe
from builder.layers.plan import Conflict
from builder.model import Image, Lock, LockedBase, SifImage
from builder.progress import QUIET, Reporter

if TYPE_CHECKING:
    from builder.settings import Settings
    from builder.store import Store


@dataclass(frozen=True)
class BuildRequest:
    """What an engine builds.

    Args:
        recipe: the target.
        lock: its lock; a lock without a base (made elsewhere) takes what the recipe's base reference holds now.
        lock_text: the lock file's bytes; they go into the image as ``/opt/builder/conda-lock.yml``.
        settings, store: the cache, and what this machine's owner set.
        requested: package names that the environment file asks for.
        download_base: False leaves a registry base's layers where they are (enough where they can be mounted).
        annotations: added to the manifest, beside the recipe's.
        accept_licenses: the user accepts the licences that the engine itself asks about (cotainr's Miniforge).
    """

    recipe: Recipe
    lock: Lock
    lock_text: bytes
    settings: Settings
    store: Store
    requested: frozenset[str] = frozenset()
    download_base: bool = True
    annotations: Mapping[str, str] = field(default_factory=dict)
    accept_licenses: bool = False
    reporter: Reporter = QUIET


@dataclass(frozen=True)
class BuildResult:
    """What a build gave: an OCI image or a SIF, whatever the engine. ``timings`` are seconds by stage."""

    recipe: Recipe
    lock: Lock
    base: LockedBase
    image: Image | None = None
    sif: SifImage | None = None
    engine: str = "layered"
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def artifact(self) -> Image | SifImage:
        """What the target runs: the SIF where there is one, else the OCI image."""
        artifact = self.sif or self.image
        if artifact is None:
            raise AssertionError("a build gives an image or a SIF")
        return artifact

    @property
    def digest(self) -> str:
        """The image's manifest digest, or the sha256 of the SIF's bytes."""
        return self.artifact.digest


class Engine(Protocol):
    """One way of building."""

    name: str

    def available(self) -> str | None:
        """None when it works on this host for this user, else the reason; takes seconds at most."""

    def build(self, request: BuildRequest) -> BuildResult:
        """Builds a target.

        Raises:
            UsageError: the engine cannot build what the target needs.
            RunnerError: it does not work on this host.
            ImageError: the build failed; the message says at which step, and what the engine said last.
            FetchError, LayerError, RegistryError, SpaceError.
        """


class Clock:
    """Seconds between marks, by name."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = {}
        self._last = time.monotonic()

    def mark(self, name: str) -> None:
        now = time.monotonic()
        self.timings[name] = round(now - self._last, 4)
        self._last = now
