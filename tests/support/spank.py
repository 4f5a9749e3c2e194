"""A SPANK plugin for a private Slurm: srun's options of CSCS's Container Engine and of pyxis."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.parts import part_missing, shared_library

_HERE = Path(__file__).parent
_HEADER = Path("/usr/include/slurm/spank.h")


def plugin(folder: Path) -> Path:
    """Compiles the plugin into a folder. Skips the test if the compiler or Slurm's headers are missing."""
    if not _HEADER.exists():
        part_missing("not installed: libslurm-dev (make apt-test)")
    path = folder / "containers.so"
    shared_library(_HERE / "spank_containers.c", path, "-O")
    return path


@contextlib.contextmanager
def container_plugin(folder: Path) -> Iterator[None]:
    """Gives a Slurm the plugin. srun and slurmstepd read the file beside slurm.conf each time they start.

    Args:
        folder: of slurm.conf.
    """
    container = _HERE / "spank_container.py"
    line = f"required {plugin(folder)} {sys.executable} {container}\n"
    (folder / "plugstack.conf").write_text(line)
    try:
        yield
    finally:
        (folder / "plugstack.conf").unlink()
