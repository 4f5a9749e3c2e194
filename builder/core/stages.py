"""The options of the stages that the command line and the Python API call: lock and build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

#: What solves the conda packages of an environment.
Solver = Literal["rattler", "conda-lock"]


@dataclass(frozen=True)
class LockOptions:
    """What a lock takes from the one before, and what it leaves to newer packages."""

    update: Sequence[str] = ()
    """Names of packages to update; all others stay, except dependencies that have to change."""
    update_base: bool = False
    """Pin the digest that the base's reference has now; packages stay."""
    exclude_newer: str | None = None
    """A date or time (ISO 8601), or ``month``, that replaces the recipe's own for conda and pip
    packages: packages published later are ignored."""
    solver: Solver = "rattler"
    """``rattler``, with uv for pip packages, or ``conda-lock``, which runs conda or micromamba."""

    @property
    def is_update(self) -> bool:
        """Whether packages of an earlier lock stay."""
        return bool(self.update) or self.update_base


@dataclass(frozen=True)
class BuildOptions:
    """How a target is built."""

    lock_file: Path | None = None
    """A lock file to use instead of the target's own."""
    engine: str | None = None
    """The engine to use instead of the recipe's."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the image's manifest, in addition to the recipe's."""
    download_base: bool = True
    """False does not download layers of a base image, or of an image that is reused. Enough where
    they can be mounted.
    """
    accept_licenses: bool = False
    """The user accepts the licences that the engine asks about (cotainr: Miniforge's)."""
    rebuild: bool = False
    """Build even if a stored build has the same inputs (engines docker, apptainer and cotainr)."""
    check_steps: bool = False
    """Run each step of the recipe a second time, and compare (engine layered)."""
