"""What all engines share: the request, the one result record, and how they run a program and say why it failed."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builder.config.recipe import Recipe
from builder.errors import RunnerError, UsageError
from builder.layers.plan import Conflict
from builder.model import Image, Lock, LockedBase, SifImage
from builder.progress import QUIET, Reporter
from builder.store import space_errors

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


def run_engine(engine: Engine, request: BuildRequest) -> BuildResult:
    """Builds with an engine, when it can build what the target is and works on this host.

    One that gives other bytes each time is not asked twice for the same: its last build is the target's, see ``kept.py``.

    Raises:
        UsageError: it builds the wrong format.
        RunnerError: it does not work here.
        BuilderError: see :meth:`Engine.build`.
    """
    from builder.engines import ENGINES, find_engine
    from builder.engines.kept import KeptBuild

    recipe = request.recipe
    if recipe.format not in engine.formats:
        fit = [name for name in ENGINES if recipe.format in find_engine(name).formats]
        raise UsageError(
            f"the engine {engine.name} makes {' and '.join(_FORMATS[f] + 's' for f in sorted(engine.formats))}, and target "
            f"{recipe.name} is {'an' if recipe.format == 'oci' else 'a'} {_FORMATS[recipe.format]} "
            f"({recipe.source}: format: {recipe.format})",
            f"build it with --engine {', '.join(fit[:-1])} or {fit[-1]}, or change 'format:' in the recipe",
        )
    kept = None if engine.repeatable else KeptBuild(engine.name, request)
    if kept and not request.rebuild and (same := kept.find()) is not None:
        return same
    if (reason := engine.available()) is not None:
        raise RunnerError(
            f"the engine {engine.name} does not work here: {reason}",
            "correct that, or build with --engine layered, which needs nothing; builder doctor says what there is",
        )
    result = engine.build(request)
    if kept:
        kept.keep(result)
    return result


_FORMATS = {"oci": "OCI image", "sif": "SIF"}


def place_file(source: Path, target: Path) -> Path:
    """Puts a finished file at its place without a moment in which half of it is there: a hard link where possible, else a copy.

    Raises:
        SpaceError: the disk is full or the folder cannot be written.
    """
    temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp"
    with space_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                temporary.hardlink_to(source)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)  # of two links to one file, rename leaves both
    return target


def kept_sif(request: BuildRequest, engine: str) -> Path:
    """Where the cache keeps the target's last SIF of an engine: one for each project, since names are its own."""
    project = hashlib.sha256(str(request.recipe.root).encode()).hexdigest()[:8]
    path = request.settings.cache / "sif" / f"{request.recipe.name}-{engine}-{project}.sif"
    with space_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def tail(lines: Iterable[str], count: int = 15) -> str:
    """The last lines that say something, indented, for a message."""
    return "\n".join(f"    {line.rstrip()}" for line in [x for x in lines if x.strip()][-count:])


class Clock:
    """Seconds between marks, by name."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = {}
        self._last = time.monotonic()

    def mark(self, name: str) -> None:
        now = time.monotonic()
        self.timings[name] = round(now - self._last, 4)
        self._last = now
