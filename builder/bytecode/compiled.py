"""The compiled modules of a package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """A compiled module. Paths are relative to the image's root, as in :mod:`builder.layers.entry`."""

    source: str
    """The module: ``opt/conda/lib/python3.11/site-packages/six.py``."""
    pyc: str
    """What Python reads in its place: ``.../site-packages/__pycache__/six.cpython-311.pyc``."""
    offset: int
    """Where its bytes begin in :attr:`PackageBytecode.blob`."""
    size: int
    """In bytes."""
    sha256: str
    """Of its bytes: 64 lower-case hex digits."""


@dataclass(frozen=True, slots=True)
class PackageBytecode:
    """All modules of a package that can be compiled, in the order of :attr:`CompiledFile.pyc`."""

    files: tuple[CompiledFile, ...]
    blob: Path
    """One file that holds the bytes of all of them; content was verified when it was read from the cache."""
