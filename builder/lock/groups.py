"""The groups of a lock: which packages go into the image, and which are left out.

conda-lock writes a category beside each package. A package that ``main`` and ``dev`` need has one
of the two, so a chosen group takes what its packages need, whatever the category of that is::

    main: flask -> werkzeug        groups: [main]   flask, werkzeug
    dev:  werkzeug, pytest         left out         pytest
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from builder.core.errors import LockError
from builder.core.model import MAIN, Lock, LockedPackage

from .config.merge import choices
from .config.recipe import Recipe
from .config.yamlfile import place_of
from .names import pypi_name


def is_own(lock: Lock) -> bool:
    """Return whether builder made the lock, and recorded what from."""
    return "conda" in lock.record.inputs


def chosen_groups(recipe: Recipe, lock: Lock) -> Lock:
    """Return the lock with the packages of the recipe's ``groups``, all in the category ``main``.

    Packages for other platforms stay as they are. So does a lock of builder: it has only what was
    chosen. The record names the groups that are omitted.

    Raises:
        LockError: the lock has no such group, or no package for the platform.
    """
    if is_own(lock):
        return lock
    here = [package for package in lock.packages if package.platform == recipe.platform]
    needed = _with_needed(here, _groups(recipe, here, lock))
    chosen = {_key(package): package for package in needed}  # one of two groups is there twice
    main = tuple(replace(package, category=MAIN) for package in chosen.values())
    others = tuple(package for package in lock.packages if package.platform != recipe.platform)
    rest = {package.category for package in here if _key(package) not in chosen}
    record = replace(lock.record, left_out=left_out_line(recipe.groups, rest))
    return replace(lock, packages=(*main, *others), record=record)


def left_out_line(groups: Sequence[str], others: Iterable[str]) -> str:
    """Return the line about groups that are omitted.

    Args:
        groups: the chosen ones; empty: ``main``.
        others: those that are left out.
    """
    if not (names := sorted(others)):
        return ""
    every = ", ".join([*(groups or (MAIN,)), *names])
    return f"left out: {', '.join(names)}; to include all: groups: [{every}]"


def _groups(recipe: Recipe, packages: Sequence[LockedPackage], lock: Lock) -> tuple[str, ...]:
    """Return the groups to take, after checks."""
    known = {package.category for package in packages}
    if not known:
        others, platform = sorted({p.platform for p in lock.packages}), recipe.platform
        known_ones = f"it has packages for {', '.join(others)}: lock again for {platform}"
        raise LockError(
            f"{recipe.lock_path}: the lock of target {recipe.name} has no package for {platform}",
            known_ones if others else "lock again",
        )
    if not recipe.groups and MAIN not in known:
        raise LockError(
            f"{recipe.lock_path}: no package of the lock is in the group {MAIN}",
            f"name the groups of the image in {recipe.source}: groups: [{', '.join(sorted(known))}]",
        )
    for group in recipe.groups:
        if group not in {*known, MAIN}:
            raise LockError(
                f"{place_of(recipe.source, 'groups')}: {recipe.lock_path} has no group {group!r}",
                choices(group, sorted(known)),
            )
    return recipe.groups or (MAIN,)


def _with_needed(packages: Sequence[LockedPackage], groups: Sequence[str]) -> list[LockedPackage]:
    """Return the packages of some groups, and all that they need, in the order of the lock."""
    by_name: dict[str, list[LockedPackage]] = {}
    for package in packages:
        for name in {canonicalize_name(package.name), pypi_name(package.name)}:
            by_name.setdefault(name, []).append(package)
    found = [package for package in packages if package.category in groups]
    taken = set(map(_key, found))
    for package in found:  # the list grows
        for dependency in package.dependencies:
            for needed in by_name.get(canonicalize_name(dependency), ()):
                if _key(needed) not in taken:
                    taken.add(_key(needed))
                    found.append(needed)
    chosen = set(map(id, found))
    return [package for package in packages if id(package) in chosen]


def _key(package: LockedPackage) -> tuple[str, str]:
    """Return the identity of a package; conda's typing-extensions and typing_extensions differ."""
    is_pip = package.manager == "pip"
    return package.manager, canonicalize_name(package.name) if is_pip else package.name
