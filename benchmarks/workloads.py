"""What is installed: five environments, from ten wheels to 3 GB of them, and what each is measured with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import synthetic
from benchmarks.wheels import UPDATED, fetch_wheels, requirements, with_update

BUILDER, NO_BYTECODE = "builder", "builder, bytecode: none"
PIP, UV, UV_NO_COMPILE = "docker, pip", "docker, uv --compile-bytecode", "docker, uv"
BUILDAH, MICROMAMBA = "buildah, uv", "docker, micromamba"
#: The last one's image is still in the registry when starts are measured.
_WHEEL_RIVALS = (BUILDAH, PIP, UV_NO_COMPILE, UV)


@dataclass(frozen=True)
class Workload:
    """An environment, and how often it is installed in which ways."""

    name: str
    title: str
    wheels: Path
    """The folder of its wheels."""
    fetch: Callable[[Path], None] | None = None
    """Downloads or writes the wheels; None: there are none."""
    wanted: tuple[str, ...] = ()
    """The wheels, as ``NAME==VERSION``."""
    updated: tuple[str, ...] = ()
    """The same with one small package in another version; empty: this is not measured."""
    conda: tuple[str, ...] = ()
    """Conda packages besides python."""
    rivals: tuple[str, ...] = _WHEEL_RIVALS
    runs: int = 3
    """Repetitions of builder."""
    rival_runs: int = 3
    """Repetitions of each rival."""
    sif: tuple[str, ...] = ()
    """The layouts of SIFs that are made of it."""
    apptainer: bool = False
    """Whether ``apptainer build`` makes SIFs of it too."""
    starts: bool = False
    """Whether the start of its images is measured."""
    space: int = 0
    """Bytes of free disk that it needs."""


def workloads(folder: Path, *, quick: bool) -> list[Workload]:
    """All workloads of a run, in their order.

    Args:
        folder: where wheels are stored between runs.
        quick: small environments only, each measured once.
    """
    conda = Workload(
        "conda",
        "conda packages of the Debian channel",
        folder / "none",
        conda=("pip", "setuptools", "wheel"),
        rivals=(MICROMAMBA,),
    )
    if quick:
        found = [
            _real(
                "small",
                "10 small wheels",
                folder,
                sif=("flat", "layered"),
                apptainer=True,
                starts=True,
            ),
            conda,
            _made("synthetic", folder, count=30, files=3_000, size=60_000_000, rivals=(UV,)),
        ]
        return [replace(workload, runs=1, rival_runs=1) for workload in found]
    return [
        _real("small", "10 small wheels", folder),
        conda,
        _made(
            "synthetic",
            folder,
            count=300,
            files=60_000,
            size=1_000_000_000,
            rivals=(UV,),
            rival_runs=1,
        ),
        _real(
            "torch",
            "torch for CPU, a machine-learning environment",
            folder,
            rivals=(BUILDAH, UV_NO_COMPILE, UV),
            rival_runs=1,
            sif=("flat", "layered"),
            apptainer=True,
            starts=True,
            space=20_000_000_000,
        ),
        _real(
            "cuda",
            "torch with CUDA",
            folder,
            rivals=(),
            runs=1,
            sif=("flat",),
            space=35_000_000_000,
        ),
    ]


def _real(name: str, title: str, folder: Path, **more: Any) -> Workload:
    """A workload of wheels from the package index."""
    wanted = requirements(name)

    def fetch(wheels: Path) -> None:
        fetch_wheels(wheels, [*wanted, UPDATED])

    place = folder / ("wheels-cuda" if name == "cuda" else "wheels")
    return Workload(name, title, place, fetch, wanted, with_update(wanted), **more)


def _made(name: str, folder: Path, *, count: int, files: int, size: int, **more: Any) -> Workload:
    """A workload of made wheels. The last one exists in a second version."""
    packages = synthetic.packages(count, files, size)
    newer = replace(packages[-1], version="1.1")
    wanted, updated = (
        tuple(synthetic.requirement(p) for p in some)
        for some in (packages, [*packages[:-1], newer])
    )

    def fetch(wheels: Path) -> None:
        synthetic.write_wheels(wheels, [*packages, newer])

    title = f"{count} made wheels, {files:,} files"
    return Workload(name, title, folder / f"made-{count}-{size}", fetch, wanted, updated, **more)


def sized(folder: Path, count: int, size: int) -> Workload:
    """Made wheels for the plot of cost against size: 50 files in each package."""
    made = _made(f"size-{count}", folder, count=count, files=50 * count, size=size, rivals=())
    return replace(made, updated=(), runs=1)
