"""The Debian packages of a base image, in the list of its dpkg. Nothing of the base is run.

Layers of a base in a registry are downloaded as far as needed: the lowest one, which says what
system it is, and then from the top down to the first one with dpkg's list. Distroless bases have a
list per package (``status.d``), in any layer, so all are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from builder.core.model import LockedBase
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.store.records import Record
from builder.core.workspace import Workspace
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source
from builder.lock.config.recipe import Recipe

from .image import BaseImage
from .resolve import open_base

#: Part of the name of records. Increase it when other packages are found in the same base.
_FORMAT = 1
STATUS = "var/lib/dpkg/status"
#: The files that are read (os-release(5), dpkg(1)).
_READ = re.compile(r"(etc|usr/lib)/os-release|var/lib/dpkg/status(\.d/.+(?<!\.md5sums))?")
#: Bytes of these files together. The list of a large system has about 4 MB.
MAX_SIZE = 32 << 20
_FIELD = re.compile(r"(?m)^(Package|Version|Architecture|Source|Status):[ \t]*(.*)")
#: States (the last word of ``Status``) of packages without files.
_NO_FILES = ("not-installed", "config-files")


class DebianPackage(NamedTuple):
    """A package in a list of dpkg."""

    name: str
    version: str
    """With epoch and revision."""
    architecture: str
    """Debian's name, or ``all``."""
    source: str
    """The source package, as ``NAME`` or ``NAME (VERSION)``; empty if it has the same name and
    version."""


class BaseSystem(NamedTuple):
    """The system of a base image."""

    name: str
    """``debian``, ``ubuntu``; empty: unknown."""
    version: str
    """``12``, ``24.04``; for a release without a number its name; empty: unknown."""
    packages: tuple[DebianPackage, ...]
    """Sorted; empty for a system that is not made of Debian packages."""


def base_system(locked: LockedBase, recipe: Recipe, work: Workspace) -> BaseSystem:
    """Return the system of a recipe's base. It is recorded, so that a base is read once.

    Raises:
        ImageError: the base is damaged.
        RegistryError, SpaceError: the base is not available.
    """

    def find() -> BaseSystem:
        base = open_base(locked, recipe, work, download=False)
        with working(work.reporter, "looking for the packages of the base"):
            return find_system(base, work)

    return system_record(locked, work.store).get(find)


def system_record(locked: LockedBase, store: Store) -> Record[BaseSystem]:
    """Return the record of a base's system."""
    name = f"base-system-{_FORMAT}-{locked.digest.replace(':', '-')}.json"
    return store.record(store.folders.index / name, BaseSystem)


def find_system(base: BaseImage, work: Workspace) -> BaseSystem:
    """Return the system of a base image, from its files.

    Raises:
        ImageError: the base is damaged.
        RegistryError, SpaceError: a layer cannot be downloaded.
    """
    # imported here: a publish with nothing changed reads no base
    from .sif import downloading_sources

    sources = downloading_sources(base, work)
    lowest = _read(sources[:1])
    release = _release(lowest)
    families = {"", "debian", "ubuntu"}
    if not families & {release.get("ID", ""), *release.get("ID_LIKE", "").split()}:
        return BaseSystem(release["ID"], release.get("VERSION_ID", ""), ())
    texts = _read(sources, last=STATUS) if len(sources) > 1 else lowest
    release = _release(texts) or release
    packages = listed_packages(texts)
    version = release.get("VERSION_ID") or release.get("VERSION_CODENAME", "")
    return BaseSystem(release.get("ID") or ("debian" if packages else ""), version, packages)


def _read(sources: Sequence[Source], last: str = "") -> dict[str, str]:
    """Return the texts by path, from the top down; nothing is read after ``last``."""
    found: dict[str, str] = {}
    for path, text in Merge(sources).read(_READ, MAX_SIZE, "the lists of dpkg in the base"):
        found[path] = text
        if path == last:
            break
    return found


def _release(texts: Mapping[str, str]) -> dict[str, str]:
    text = texts.get("etc/os-release") or texts.get("usr/lib/os-release", "")
    pairs = re.findall(r"(?m)^(\w+)=(.{0,200})", text)  # each package's purl has the system's name
    return {name: value.strip(" \t\r\"'") for name, value in pairs}


def listed_packages(texts: Mapping[str, str]) -> tuple[DebianPackage, ...]:
    """Return the installed packages in lists of dpkg, sorted.

    Args:
        texts: the lists by path.
    """
    found = {}
    lists = [text for path, text in sorted(texts.items()) if path.startswith(STATUS)]
    for stanza in re.split(r"\n\s*\n", "\n\n".join(lists)):
        fields = defaultdict(str, {name: value.strip() for name, value in _FIELD.findall(stanza)})
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        if name and version and fields["Status"].rpartition(" ")[2] not in _NO_FILES:
            found[name, architecture] = DebianPackage(name, version, architecture, fields["Source"])
    return tuple(found[key] for key in sorted(found))
