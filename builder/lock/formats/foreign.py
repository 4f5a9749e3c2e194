"""What builder reads from the lock file of another tool, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.lock.othertools import TOOLS, Format
from builder.model import LockedPackage


@dataclass(frozen=True, slots=True)
class ForeignSource:
    """A package that a foreign lock pins as source: it has to be built."""

    kind: Literal["sdist", "git", "archive", "local"]
    name: str
    version: str
    """Empty where the lock does not have it."""
    url: str
    """Of the archive or repository, without ``git+``; of a local one its path, relative to the lock's folder
    or absolute."""
    revision: str = ""
    """The commit of a git repository."""
    subdirectory: str = ""
    sha256: str = ""
    """Of an sdist or archive; empty if the lock has none."""
    editable: bool = False
    where: str = ""
    """``FILE`` or ``FILE:LINE``, for messages."""


@dataclass(frozen=True, slots=True)
class PinnedRequirement:
    """A version, or a URL, without the hash or the URL of the file that is installed: an index names it."""

    name: str
    """Normalised as PEP 503 says."""
    version: str
    sha256: frozenset[str]
    """The hashes that its file may have; empty: any, and the lock stores the one that the index has."""
    text: str
    """The requirement without marker and hashes: ``torch==2.5.1+cpu``, ``torch @ https://...whl``."""
    where: str
    """``FILE:LINE``."""


@dataclass(frozen=True, slots=True)
class ForeignLock:
    """The part of a foreign lock that is for one platform, one Python and the chosen groups."""

    format: Format
    path: Path
    packages: tuple[LockedPackage, ...] = ()
    """Those with a URL and a hash: conda packages and wheels, all of category ``main``."""
    sources: tuple[ForeignSource, ...] = ()
    """Those that must be built."""
    pinned: tuple[PinnedRequirement, ...] = ()
    """Those whose files an index must name."""
    index_options: tuple[str, ...] = ()
    """``--index-url URL`` and the like, in the file's order (requirements files only)."""
    platforms: tuple[str, ...] = ()
    """The platforms that the file has packages for; empty if it does not say."""
    channels: tuple[str, ...] = ()
    """Conda channels, highest priority first."""
    groups: tuple[str, ...] = ()
    """All groups, extras, categories or environments that the file offers."""
    left_out: tuple[str, ...] = ()
    """Those of ``groups`` that were not chosen."""
    needs_python: str = ""
    """A version specifier such as ``>=3.11``; empty: any, or the file has a Python of its own."""
    notes: tuple[str, ...] = ()
    """What a user should know, one sentence each."""

    @property
    def tool(self) -> str:
        """What wrote the file, for messages."""
        return TOOLS[self.format]
