"""The contract of all engines: ``build(request) -> result``; and their files during a build."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builder.core.model import Image, Lock, LockedBase, MissingLibrary, SifImage
from builder.core.settings import DEFAULT_EPOCH
from builder.core.stages import BuildOptions
from builder.core.store.files import space_errors
from builder.core.store.folders import CacheFolders
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe
from builder.lock.record import lock_date

if TYPE_CHECKING:
    from builder.build.steps.changes import StepDifference
    from builder.formats.layers.conflicts import Conflict
    from builder.formats.layers.packages import Fetch


@dataclass(frozen=True)
class BuildRequest:
    """What an engine builds."""

    recipe: Recipe
    lock: Lock
    """If it pins no base (made by another tool), the current image of the recipe's ``base`` is
    used. Its text is in the image as ``/opt/builder/conda-lock.yml``.
    """
    work: Workspace
    fetch: Fetch
    """Returns archives of the lock: missing ones are downloaded, or built from their sources."""
    requested: frozenset[str] = frozenset()
    """Names of the packages that the environment file lists; conda records them as requested."""
    options: BuildOptions = BuildOptions()
    wheel_of: str | None = None
    """The source package whose wheel is built in the image, which has its ``base_packages`` too; empty if
    its name is not known. None: the image is the target's.
    """

    @property
    def created(self) -> int:
        """When the image was created, in seconds since 1970.

        SOURCE_DATE_EPOCH if it is set, else the date of the lock, else 1980.

        Raises:
            LockError: the date of the lock is not a time.
        """
        if self.work.settings.epoch != DEFAULT_EPOCH:
            return self.work.settings.epoch
        date = lock_date(self.lock.record)
        return DEFAULT_EPOCH if date is None else date


@dataclass(frozen=True)
class BuildResult:
    """A finished build of any engine.

    Attributes:
        recipe: the recipe as it was built: cotainr replaces ``conda.prefix``.
        lock: the lock that it was built from.
        base: the base image that was used.
        artifact: what the target's machine runs: an OCI image, or a SIF.
        sif_source: the OCI image that a SIF was written from; None for OCI targets and for SIFs
            without one.
        engine: the name of the engine that built it.
        conflicts: files that several packages contain; the later package wins.
        differences: files that differed when the steps ran twice (only with ``check_steps``).
        missing_libraries: shared libraries that are not in the image (not of engine cotainr, nor of
            an unchanged build of docker and apptainer).
        notes: sentences for the user about the build.
        timings: seconds by stage, in order.
        definition: Dockerfile, definition file or conda environment that another program built, as
            (file suffix, text); None: there is none.
        image_lock: ``sha256:...`` of ``/opt/builder/conda-lock.yml`` in the image; empty: unknown.
        lock_text: the same file, which has no credentials; empty: unknown.
        requested: names of the packages that the environment file lists.
        work: the workspace of the build: its store has the records of an image that was reused.
            None: unknown.
        records: returns the cache's records of the layers and of what a build reads to plan them.
    """

    recipe: Recipe
    lock: Lock
    base: LockedBase
    artifact: Image | SifImage
    sif_source: Image | None = None
    engine: str = "layered"
    conflicts: tuple[Conflict, ...] = ()
    differences: tuple[StepDifference, ...] = ()
    missing_libraries: tuple[MissingLibrary, ...] = ()
    notes: tuple[str, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    definition: tuple[str, str] | None = None
    image_lock: str = ""
    lock_text: bytes = b""
    requested: frozenset[str] = frozenset()
    work: Workspace | None = None
    records: Callable[[], list[Path]] = list

    @property
    def image(self) -> Image | None:
        """The OCI image: the artifact itself, or what the SIF was written from."""
        return self.artifact if isinstance(self.artifact, Image) else self.sif_source

    @property
    def sif(self) -> SifImage | None:
        """The SIF; None if the target is an OCI image."""
        return self.artifact if isinstance(self.artifact, SifImage) else None

    @property
    def digest(self) -> str:
        """The image's manifest digest, or the sha256 of the SIF's bytes."""
        return self.artifact.digest


class Engine(Protocol):
    """One way to build."""

    name: str
    formats: frozenset[str]
    """What it can build: ``oci``, ``sif``."""
    repeatable: bool
    """Whether the same inputs always result in the same bytes."""

    def available(self) -> str | None:
        """Return None if the engine works on this host for this user, else the reason."""

    def build(self, request: BuildRequest) -> BuildResult:
        """Build a target.

        Raises:
            UsageError: The engine cannot build what the target needs.
            RunnerError: The engine does not work on this host.
            ImageError: The build failed; the message has the step and the last lines of output.
            FetchError, LayerError, RegistryError, SpaceError: The inputs could not be prepared.
        """


class Clock:
    """Measures the stages of a build."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = {}
        """Seconds by stage, in order."""
        self._last = time.monotonic()

    def mark(self, stage: str) -> None:
        """End a stage that began at the last mark."""
        now = time.monotonic()
        self.timings[stage] = round(now - self._last, 4)
        self._last = now


def cached_sif(request: BuildRequest, engine: str) -> Path:
    """Return the path of the target's last SIF by an engine.

    It has a part for the project folder, because two projects may have targets of the same name.
    """
    recipe, folder = request.recipe, CacheFolders(request.work.settings.cache).sif
    project = hashlib.sha256(str(recipe.root).encode()).hexdigest()[:8]
    path = folder / f"{recipe.name}-{engine}-{project}.sif"
    with space_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path
