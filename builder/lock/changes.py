"""What differs between two locks: packages and the base image."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from builder.core.model import Lock, LockedBase, LockedPackage, Manager

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class LockChange:
    """A package that differs."""

    name: str
    manager: Manager
    platform: str
    old: str | None
    """The version; with the build or the hash, if the versions are the same. None: the package is
    new.
    """
    new: str | None
    """The same of the newer lock. None: the package is gone."""

    @property
    def kind(self) -> Kind:
        """How the package differs."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


@dataclass(frozen=True, slots=True)
class LockChanges:
    """Everything that differs between two locks."""

    packages: tuple[LockChange, ...]
    """By name."""
    old_base: LockedBase | None
    new_base: LockedBase | None

    @property
    def base_moved(self) -> bool:
        """Whether the base image differs."""
        return self.old_base != self.new_base

    def __bool__(self) -> bool:
        return bool(self.packages) or self.base_moved

    def count(self, kind: Kind) -> int:
        """Return the number of packages that were added, removed or changed."""
        return sum(change.kind == kind for change in self.packages)

    def to_json(self) -> dict[str, Any]:
        """Return the changes for ``--json``; ``base`` is null if the base image is the same."""
        base = {"old": _base_json(self.old_base), "new": _base_json(self.new_base)}
        packages = [asdict(change) for change in self.packages]
        return {"packages": packages, "base": base if self.base_moved else None}


def _base_json(base: LockedBase | None) -> dict[str, str] | None:
    return {"reference": base.reference, "digest": base.digest} if base else None


def compare_locks(old: Lock | None, new: Lock) -> LockChanges:
    """Return the differences between two locks.

    Args:
        old: the earlier lock; None: there was none, so all packages are new.
        new: the later lock.
    """
    before = {_key(p): p for p in _packages(old)} if old else {}
    after = {_key(p): p for p in _packages(new)}
    changes = []
    for key in sorted(before.keys() | after.keys()):
        a, b = before.get(key), after.get(key)
        if not (a and b and a.key == b.key):
            platform, name, manager = key
            changes.append(LockChange(name, manager, platform, *_texts(a, b)))
    return LockChanges(tuple(changes), old.base if old else None, new.base)


def _packages(lock: Lock) -> list[LockedPackage]:
    """Return all packages; those of the OS belong to the lock's platform."""
    platform = lock.platforms[0] if lock.platforms else ""
    system = [package.locked(platform) for package in lock.record.os_packages or ()]
    return [*lock.packages, *system]


def _key(package: LockedPackage) -> tuple[str, str, Manager]:
    return package.platform, package.name, package.manager


def _texts(a: LockedPackage | None, b: LockedPackage | None) -> tuple[str | None, str | None]:
    """Return the two versions, with the build or a part of the hash where they are equal."""
    if a is None or b is None:
        return a.version if a else None, b.version if b else None
    if a.version != b.version:
        return a.version, b.version
    if a.build != b.build:
        return f"{a.version} {a.build}", f"{b.version} {b.build}"
    return f"{a.version} {a.key[:19]}", f"{b.version} {b.key[:19]}"
