"""What all engines share: the request, the one result record, and how they run a program and say why it failed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builder.config.recipe import Recipe
from builder.layers.conflicts import Conflict
from builder.model import Image, Lock, LockedBase, SifImage
from builder.progress import QUIET, Reporter
from builder.store.files import space_errors
from builder.store.folders import CacheFolders

if TYPE_CHECKING:
    from builder.settings import Settings
    from builder.store.blobs import Store


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
        rebuild: builds anew where the engine's last build of the very same would do.
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
    rebuild: bool = False
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
    definition: tuple[str, str] | None = None
    """What the engine was given to build, as (suffix, text): its Dockerfile, definition file or conda environment."""

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
    """One way of building.

    ``formats`` are what it can make: ``oci``, ``sif``. ``repeatable`` says that the same inputs give the same bytes.
    """

    name: str
    formats: frozenset[str]
    repeatable: bool

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


def cached_sif(request: BuildRequest, engine: str) -> Path:
    """Where the cache keeps the target's last SIF of an engine: one for each project, since names are its own."""
    project = hashlib.sha256(str(request.recipe.root).encode()).hexdigest()[:8]
    path = CacheFolders(request.settings.cache).sif / f"{request.recipe.name}-{engine}-{project}.sif"
    with space_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


class Clock:
    """Seconds between marks, by name."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = {}
        self._last = time.monotonic()

    def mark(self, name: str) -> None:
        now = time.monotonic()
        self.timings[name] = round(now - self._last, 4)
        self._last = now
