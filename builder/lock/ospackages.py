"""The OS packages of a lock: what ``base_packages`` adds to a base, each by version and hash."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from builder.config.explain import first_problem
from builder.errors import LockError
from builder.model import Lock, LockedPackage, canonical_json

#: Key of the lock's metadata: a list in canonical JSON. Empty list: the base has everything already.
OS_PACKAGES = "builder.os-packages"

#: Bytes of a ``.deb``.
MAX_SIZE = 64 << 30
_LOCK_AGAIN = "lock again: builder lock"


@dataclass(frozen=True, slots=True)
class OsPackage:
    """One ``.deb`` file. No value may be more than a part of a file name, an address or a
    command.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]{0,200}$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+~:-]{0,200}$")]
    """With epoch and revision: ``2:1.3.4-1+b1``."""
    architecture: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
    """Debian's name, or ``all``."""
    url: Annotated[str, Field(pattern=r"^(https?|file)://[!-~]{1,2000}$")]
    """In the public archive; without credentials."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(gt=0, lt=MAX_SIZE)]
    """Of the file in bytes."""

    @property
    def filename(self) -> str:
        """The file's name as apt has it: ``NAME_VERSION_ARCHITECTURE.deb``, with ``%3a`` for a
        colon.
        """
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"

    @property
    def purl(self) -> str:
        """The package URL (package-url/purl-spec, type deb)."""
        vendor = "ubuntu" if "ubuntu" in self.url else "debian"
        version = quote(self.version, safe=".-_~")
        return f"pkg:deb/{vendor}/{quote(self.name, safe='.-')}@{version}?arch={self.architecture}"

    def locked(self, platform: str) -> LockedPackage:
        """Return the package as downloads and comparisons of locks take it."""
        name = self.name
        if self.architecture not in ("all", "amd64", "arm64"):
            name = f"{name}:{self.architecture}"
        return LockedPackage(name, self.version, "apt", platform, self.url, self.sha256)


_PACKAGE = TypeAdapter(OsPackage)


def os_packages(lock: Lock) -> tuple[OsPackage, ...] | None:
    """Return the OS packages of a lock; None if it does not say, because another tool made it or
    there are none.

    Raises:
        LockError: the value is damaged.
    """
    text = lock.custom.get(OS_PACKAGES)
    if text is None:
        return None
    try:
        return _distinct(package_of(item) for item in json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise LockError(f"the lock's {OS_PACKAGES} is damaged: {e}", _LOCK_AGAIN) from None


def os_packages_text(packages: Sequence[OsPackage]) -> str:
    """Return the value of :data:`OS_PACKAGES`."""
    ordered = sorted(packages, key=lambda p: (p.name, p.architecture, p.version))
    return canonical_json([asdict(package) for package in ordered]).decode()


def names_of_os_only(lock: Lock, names: Sequence[str]) -> frozenset[str]:
    """Those of the names that the lock has as OS packages, and not as conda or pip packages."""
    system = {package.name for package in os_packages(lock) or ()}
    return frozenset(names) & system - {package.name for package in lock.packages}


def _distinct(packages: Iterable[OsPackage]) -> tuple[OsPackage, ...]:
    found: dict[str, OsPackage] = {}
    for package in packages:
        if found.setdefault(package.filename, package) != package:
            raise ValueError(f"{package.filename} appears twice")
    return tuple(found.values())


def package_of(item: Any) -> OsPackage:
    """Return the package of which a lock, or the base's apt, has these values.

    Raises:
        ValueError: a value is missing, or may not be part of a file name, an address or a command.
    """
    try:
        return _PACKAGE.validate_python(item)
    except ValidationError as e:
        raise ValueError(first_problem(e)[1]) from None
