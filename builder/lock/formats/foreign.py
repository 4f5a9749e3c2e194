"""The content of a foreign lock, the lock file of another tool, and the target of a reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag

from builder.core.model import LockedPackage
from builder.lock.config.recipe import Recipe
from builder.lock.spec import Environment, SourceSpec, Spec
from builder.lock.wheels import target_tags

#: One package of a lock file: a conda package or a wheel, with URL and hash; a source that must be
#: built, whose path is relative to the lock's folder, or absolute; or a requirement with a version
#: or a URL, whose file has no hash or no URL in the lock, so an index names it.
Found = LockedPackage | SourceSpec | Spec

_NO_OPTIONS = Environment(Path())


@dataclass(frozen=True, slots=True)
class LockTarget:
    """The target for which a foreign lock is read, and the part of the lock that it takes."""

    recipe: Recipe
    """Its ``groups`` are those to take, and ``lock_environment`` is that of a ``pixi.lock``."""
    python: str
    """The target's Python (``3.11``, ``3.11.9``). Empty: the lock has a Python itself."""

    @property
    def tags(self) -> list[Tag]:
        """The tags of wheels that the target installs, the best first."""
        return target_tags(self.recipe, self.python)


@dataclass(frozen=True, slots=True)
class ForeignLock:
    """The part of a foreign lock that is for one platform, one Python and the chosen groups."""

    found: tuple[Found, ...] = ()
    options: Environment = _NO_OPTIONS
    """The indexes and constraints that the file names (requirements files only)."""
    skipped: tuple[Spec, ...] = ()
    """The requirements whose markers are false for the target, each with its marker."""
    channels: tuple[str, ...] = ()
    """Conda channels, highest priority first."""
    omitted: tuple[str, ...] = ()
    """The groups and extras of the file that were not chosen."""
    tool: str = ""
    """The kind of the file, for messages."""

    @property
    def is_fitting(self) -> bool:
        """Whether the markers keep a requirement, if there is one."""
        return bool(self.found) or not self.skipped

    @property
    def index_options(self) -> list[str]:
        """The options as lines: ``--index-url URL`` and the like."""
        own = self.options
        lines = [f"--index-url {own.index_url}"] if own.index_url else []
        lines += [f"--extra-index-url {url}" for url in own.extra_index_urls]
        lines += [f"--find-links {link}" for link in own.find_links]
        lines += [f"--no-binary {name}" for name in own.no_binary]
        return lines + [f"--only-binary {name}" for name in own.only_binary]

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
