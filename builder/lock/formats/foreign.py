"""What builder reads from the lock file of another tool, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.lock.othertools import TOOLS, Format
from builder.lock.spec import SourceSpec, Spec
from builder.model import LockedPackage

#: One package of a lock file. A package with URL and hash: a conda package or a wheel. A source that must be
#: built: the path of a local one is relative to the lock's folder, or absolute. A requirement, with a
#: version or a URL: its file has no hash or no URL in the lock, so an index names it.
Found = LockedPackage | SourceSpec | Spec


@dataclass(frozen=True, slots=True)
class ForeignLock:
    """The part of a foreign lock that is for one platform, one Python and the chosen groups."""

    format: Format
    path: Path
    found: tuple[Found, ...] = ()
    index_options: tuple[str, ...] = ()
    """``--index-url URL`` and the like, in the file's order (requirements files only)."""
    channels: tuple[str, ...] = ()
    """Conda channels, highest priority first."""
    left_out: tuple[str, ...] = ()
    """The groups and extras of the file that were not chosen."""

    @property
    def packages(self) -> list[LockedPackage]:
        """The packages with a URL and a hash, all of category ``main``."""
        return [item for item in self.found if isinstance(item, LockedPackage)]

    @property
    def sources(self) -> list[SourceSpec]:
        """The sources that must be built."""
        return [item for item in self.found if isinstance(item, SourceSpec)]

    @property
    def pinned(self) -> list[Spec]:
        """The requirements whose files an index must name."""
        return [item for item in self.found if isinstance(item, Spec)]

    @property
    def tool(self) -> str:
        """What wrote the file, for messages."""
        return TOOLS[self.format]
