"""The packages of an image from its lock, and what differs between two images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from builder.core.datafiles import read_beside
from builder.core.model import Lock

#: Packages that determine the speed of measurements. They are listed first.
_LIKELY = re.compile("|".join(read_beside(__file__, "likely_causes.txt").splitlines()))


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package that differs between two images."""

    text: str
    """``NAME OLD -> NEW``: the versions, with the builds of a conda package, or ``(none)``."""
    likely: bool
    """Whether the package is a likely cause of a change in speed."""


def packages_of_lock(lock: Lock, platform: str) -> dict[str, str]:
    """Return name and version (and build, of conda packages) of a lock's packages, for reports.

    The name of a pip package that conda installs, too, ends in `` (pip)``.
    """
    out: dict[str, str] = {}
    for package in sorted(lock.for_platform(platform), key=lambda p: p.manager):
        name = f"{package.name} (pip)" if package.name in out else package.name
        out[name] = f"{package.version} {package.build}".strip()
    return dict(sorted(out.items()))


def changed_packages(old: Mapping[str, str], new: Mapping[str, str]) -> list[PackageChange]:
    """Return the packages that differ, likely causes of a change in speed first.

    Builds are compared only if both images list them.
    """
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before and after and not (" " in before and " " in after):
            before, after = before.partition(" ")[0], after.partition(" ")[0]
        if before != after:
            likely = _LIKELY.fullmatch(name.removesuffix(" (pip)")) is not None
            text = f"{name} {before or '(none)'} -> {after or '(none)'}"
            changes.append(PackageChange(text, likely))
    return sorted(changes, key=lambda change: not change.likely)
