"""What an environment file asks for, whatever the format of the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Spec:
    """One requirement of an environment file."""

    text: str
    """As written, with single spaces and without comment."""
    name: str
    """The package's name: conda's in lower case, pip's normalised as PEP 503 says."""
    where: str
    """``FILE:LINE``."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment file for one platform."""

    path: Path
    name: str
    """``name:`` of the file; may be empty."""
    channels: tuple[str, ...]
    """Highest priority first, without ``nodefaults``."""
    conda: tuple[Spec, ...]
    pip: tuple[Spec, ...]
    index_url: str | None = None
    """``--index-url`` of the pip section; None means pip's own."""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    """URLs, or folders as written, relative to the folder of the environment file."""

    notes: tuple[str, ...] = ()
    """What conda ignores in the file, each with ``FILE:LINE`` and what to write."""

    @property
    def requested(self) -> frozenset[str]:
        """The names of all packages that the file lists."""
        return frozenset(spec.name for spec in (*self.conda, *self.pip))
