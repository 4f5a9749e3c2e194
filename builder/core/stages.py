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
    """What a lock takes from the one before, and what it leaves to newer packages.

    Attributes:
        update: names of packages to update; all others stay, except dependencies that have to
            change.
        update_base: pin the digest that the base's reference has now; packages stay.
        exclude_newer: a date or time (ISO 8601), or ``month``, that replaces the recipe's own for
            conda and pip packages: packages published later are ignored. None: the recipe's.
        solver: ``rattler``, with uv for pip packages, or ``conda-lock``, which runs conda or
            micromamba.
    """

    update: Sequence[str] = ()
    update_base: bool = False
    exclude_newer: str | None = None
    solver: Solver = "rattler"

    @property
    def is_update(self) -> bool:
        """Whether packages of an earlier lock stay."""
        return bool(self.update) or self.update_base


@dataclass(frozen=True)
class BuildOptions:
    """How a target is built.

    Attributes:
        lock_file: a lock file to use instead of the target's own; None: its own.
        engine: the engine to use; None: the recipe's.
        annotations: annotations of the image's manifest, in addition to the recipe's.
        download_base: False does not download layers of a base image, or of an image that is
            reused. Enough where they can be mounted.
        accept_licenses: the user accepts the licences that the engine asks about (cotainr:
            Miniforge's).
        rebuild: build even if a stored build has the same inputs (engines docker, apptainer and
            cotainr).
        check_steps: run each step of the recipe a second time, and compare (engine layered).
    """

    lock_file: Path | None = None
    engine: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    download_base: bool = True
    accept_licenses: bool = False
    rebuild: bool = False
    check_steps: bool = False
