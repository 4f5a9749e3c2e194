"""What the readers share: the target of a reading and its result, limits, errors, checked packages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from builder.core.errors import LockError, SolveError
from builder.core.model import FIND_LINKS, MAIN, LockedPackage, Manager
from builder.core.store.reading import Reader
from builder.formats.net.findlinks import url_path
from builder.lock.config.explain import first_problem
from builder.lock.config.merge import choices
from builder.lock.config.recipe import Recipe
from builder.lock.config.safeyaml import MAX_BYTES, load
from builder.lock.config.yamlfile import not_yaml
from builder.lock.file import LockEntry
from builder.lock.spec import Environment, SourceSpec, Spec
from builder.lock.tomlfile import loads
from builder.lock.urls import filename_of, public
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


RESTORE = "restore the file from version control, or lock again with the tool that wrote it"


def read_text(path: Path) -> str:
    """Return the text of a lock file.

    Raises:
        LockError: the file is missing, is not text, or has more than 16 MiB.
    """
    missing = "check the path in the recipe's 'lock:'"
    text = Reader(LockError, RESTORE, MAX_BYTES, "lock file", marked=True).text(path, missing)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise LockError(f"{path}:{line}: not text", RESTORE)
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        LockError: as :func:`read_text`; or the text is no TOML, or its tables are too deep.
    """
    try:
        return loads(read_text(path))
    except ValueError as e:
        raise LockError(f"{path}: not TOML: {e}", RESTORE) from None


def read_yaml(path: Path) -> Any:
    """Return the data of a YAML file.

    Raises:
        LockError: as :func:`read_text`; or the text is not YAML, or beyond its limits.
    """
    text = read_text(path)
    try:
        return load(text)
    except yaml.YAMLError as e:
        raise LockError(not_yaml(path, e, text).message, RESTORE) from None


def check_groups(
    path: Path, groups: Sequence[str], known: Sequence[str] = (MAIN,), hint: str = ""
) -> list[str]:
    """Return groups and extras as the lock spells them; LockError unless it has all (PEP 685, 735).

    Args:
        path: the lock.
        groups: those of the recipe.
        known: those of the lock; a format without groups has :data:`MAIN` alone.
        hint: for such a format; empty: the known ones.
    """
    spelled = {canonicalize_name(name): name for name in known}
    for group in groups:
        if canonicalize_name(group) not in spelled:
            problem = f"{path}: there is no group or extra {group!r}"
            raise LockError(problem, hint or choices(group, known))
    return [spelled[canonicalize_name(group)] for group in groups]


class PackageMaker:
    """Makes checked packages of one lock file."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self._recipe = recipe

    def make(
        self,
        manager: Manager,
        name: str,
        version: str,
        url: str,
        hashes: Mapping[str, str],
        dependencies: Mapping[str, str] | None = None,
    ) -> LockedPackage:
        """Return a package whose URL has no credentials and whose fields may become file names.

        A wheel without a web address gets one in the project, else in find-links folders.
        ``hashes`` are the hex digits by ``sha256`` and, for conda packages, ``md5``.

        Raises:
            LockError: a name, version, URL or hash is missing or is not one.
        """
        if not any(hashes.values()):
            raise self.error(
                f"package {name}: {filename_of(url)} has no sha256",
                "without a hash a download cannot be verified: lock with an index that has hashes "
                "(simple API, PEP 691), or put the wheel into a find-links folder and lock with "
                "builder",
            )
        is_conda = manager == "conda"
        if not is_conda and not url.startswith(("http://", "https://", "builder://")):
            url = FIND_LINKS + quote(self._place(url), safe="+!/")
        entry = {
            "name": name if is_conda else canonicalize_name(name),
            "manager": manager,
            "version": version,
            "platform": self._recipe.platform,
            "url": url,
            "hash": hashes,
            "dependencies": dependencies,
        }
        try:
            package = LockEntry.model_validate(entry).locked()
            return replace(package, url=public(package.url))
        except ValidationError as e:
            raise self.error(f"package {name}: {first_problem(e)[1]}") from None
        except SolveError as e:
            raise self.error(e.message, e.hint) from None

    def wheel(self, url: str, sha256: str, needs: Mapping[str, str] = {}) -> LockedPackage:
        """Return the wheel of a URL or path, whose file name has its name and version.

        Raises as :meth:`make`.
        """
        name, version = [*filename_of(url).split("-"), ""][:2]
        return self.make("pip", name, version, url, {"sha256": sha256}, needs)

    def _place(self, url: str) -> str:
        """Return the path in the project of a wheel on this machine; of one elsewhere its name."""
        place = url_path(url) if url.startswith("file:") else url
        path = Path(os.path.normpath(self.path.parent.absolute() / place))
        root = self._recipe.root.absolute()
        is_here = path.is_relative_to(root) and path.is_file()
        return path.relative_to(root).as_posix() if is_here else filename_of(url)

    def error(self, message: str, hint: str = RESTORE) -> LockError:
        """Return an error that names the file."""
        return LockError(f"{self.path}: {message}", hint)
