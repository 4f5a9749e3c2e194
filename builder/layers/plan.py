"""Which packages share a layer, and which package's file wins: pure functions of what the packages bring.

A package whose archive is large gets a layer of its own. Small ones are dealt into a fixed number of groups by the hash of
their *names*, so that a new version never moves another package to another layer: a bump costs that group's bytes and no more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from builder.config.recipe import Layers
from builder.errors import LayerError
from builder.layers.entry import PackageIndex
from builder.model import LockedPackage

#: No layer's tar is larger where its files can be dealt out: registries and proxies have limits, and a retry costs less.
MAX_UNPACKED = 1 << 30


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer to be: packages in link order. ``part`` of ``parts`` when one large package is split by its files."""

    title: str
    packages: tuple[LockedPackage, ...]
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Conflict:
    """A file that several packages bring; the one linked last wins."""

    path: str
    winner: str
    losers: tuple[str, ...]


def plan_lock(
    packages: Sequence[LockedPackage],
    sizes: Mapping[str, int | None],
    options: Layers,
    *,
    budget: int,
    parts: Mapping[str, int] | None = None,
) -> list[LayerPlan]:
    """Deals packages into layers.

    Args:
        packages: in link order.
        sizes: archive bytes by :attr:`LockedPackage.key`; None or missing counts as small.
        options: the recipe's.
        budget: how many layers there may be. The size from which a package has its own doubles until they fit.
        parts: how many layers a package needs by key, where more than one, see :func:`split_index`.

    Raises:
        LayerError: the budget is smaller than the groups alone.
    """
    groups = max(1, min(options.groups, budget // 3))
    if budget < 3:
        raise LayerError(f"only {budget} layers are left above the base image", "choose a base image with fewer layers")
    threshold = options.own_layer_from
    parts = parts or {}
    while True:
        large = [p for p in packages if (sizes.get(p.key) or 0) >= threshold]
        if sum(parts.get(p.key, 1) for p in large) + 2 * groups <= budget or threshold > 1 << 40:
            break
        threshold *= 2
    chosen = {p.key for p in large}
    plans: list[LayerPlan] = []
    for manager in ("conda", "pip"):
        mine = [p for p in packages if p.manager == manager]
        buckets: dict[int, list[LockedPackage]] = {}
        for p in mine:
            if p.key not in chosen:
                buckets.setdefault(bucket(p, groups), []).append(p)
        for number in sorted(buckets):
            plans.append(LayerPlan(f"{manager} group {number + 1}: {_names(buckets[number])}", tuple(buckets[number])))
        for p in sorted((p for p in mine if p.key in chosen), key=lambda p: p.name):
            count = parts.get(p.key, 1)
            for part in range(count):
                suffix = f" ({part + 1}/{count})" if count > 1 else ""
                plans.append(LayerPlan(f"{manager} {p.name} {p.version}{suffix}", (p,), part, count))
    return plans


def split_index(index: PackageIndex, limit: int = MAX_UNPACKED) -> list[frozenset[str]]:
    """The paths of each part of a package, in the archive's order, none over ``limit`` bytes where files can be dealt out.

    A hard link stays with the file it repeats: it could not leave its layer.
    """
    part_of: dict[str, int] = {}
    number = running = 0
    for e in index.entries:
        if e.kind == "hardlink" and e.target in part_of:
            part_of[e.path] = part_of[e.target]
            continue
        if running and running + e.size > limit:
            number, running = number + 1, 0
        running += e.size
        part_of[e.path] = number
    parts: list[set[str]] = [set() for _ in range(number + 1)]
    for path, n in part_of.items():
        parts[n].add(path)
    return [frozenset(p) for p in parts]


def bucket(package: LockedPackage, groups: int) -> int:
    """The group of a small package: a function of its name and nothing else."""
    digest = hashlib.sha256(f"{package.manager} {package.name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % groups


def _names(packages: Sequence[LockedPackage]) -> str:
    names = [p.name for p in packages]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


@dataclass(frozen=True, slots=True)
class Resolution:
    """Who brings what in the end. ``leave_out`` by package key; ``moved``: old path to new, by package key."""

    conflicts: tuple[Conflict, ...]
    leave_out: Mapping[str, frozenset[str]]
    moved: Mapping[str, Mapping[str, str]]
    notes: tuple[str, ...]


def resolve_conflicts(
    packages: Sequence[LockedPackage],
    indexes: Mapping[str, PackageIndex],
    link_target: Callable[[LockedPackage, str], str],
) -> Resolution:
    """Decides every path that more than one package brings.

    conda's clobber rule: what is linked later wins. A path below another package's symlink goes where the link points, as
    it would on disk.

    Args:
        packages: in link order.
        indexes: by package key.
        link_target: reads a symlink's text; called only for links that lie on another package's way.

    Raises:
        LayerError: one package has a file where another needs a folder, or a link leads out of the image.
    """
    owner: dict[str, int] = {}
    kinds: dict[str, str] = {}
    several: dict[str, list[int]] = {}
    links: dict[str, int] = {}
    folders: dict[str, int] = {}
    for number, package in enumerate(packages):
        for e in indexes[package.key].entries:
            if e.kind == "dir":
                folders.setdefault(e.path, number)
                continue
            if e.path in owner and owner[e.path] != number:
                several.setdefault(e.path, [owner[e.path]]).append(number)
            owner[e.path] = number
            kinds[e.path] = e.kind
            if e.kind == "symlink":
                links[e.path] = number
            parent = e.path.rpartition("/")[0]
            if parent and parent not in folders:
                folders[parent] = number
    moved: dict[str, dict[str, str]] = {}
    blocked = {f for f in _ancestors(folders) if f in owner}
    if blocked:
        for number, package in enumerate(packages):
            for e in indexes[package.key].entries:
                new = _through(e.path, e.kind, blocked, kinds, links, packages, link_target, package)
                if new != e.path:
                    moved.setdefault(package.key, {})[e.path] = new
                    if e.kind != "dir":
                        if new in owner and owner[new] != number:
                            several.setdefault(new, [owner[new]]).append(number)
                        owner[new] = max(number, owner.get(new, number))
    leave_out: dict[str, set[str]] = {}
    conflicts = []
    for path, numbers in sorted(several.items()):
        winner = max(numbers)
        losers = sorted(set(numbers) - {winner})
        if not losers:
            continue
        conflicts.append(Conflict(path, packages[winner].name, tuple(packages[n].name for n in losers)))
        for n in losers:
            key = packages[n].key
            back = {v: k for k, v in moved.get(key, {}).items()}
            leave_out.setdefault(key, set()).add(back.get(path, path))
    notes = _case_notes(owner, packages)
    return Resolution(tuple(conflicts), {k: frozenset(v) for k, v in leave_out.items()}, moved, notes)


def _ancestors(folders: Mapping[str, int]) -> set[str]:
    out: set[str] = set()
    for folder in folders:
        while folder and folder not in out:
            out.add(folder)
            folder = folder.rpartition("/")[0]
    return out


def _through(
    path: str,
    kind: str,
    blocked: set[str],
    kinds: Mapping[str, str],
    links: Mapping[str, int],
    packages: Sequence[LockedPackage],
    link_target: Callable[[LockedPackage, str], str],
    package: LockedPackage,
) -> str:
    """``path`` with the symlinks of other packages on its way followed."""
    for _ in range(16):
        parts = path.split("/")
        hit = next((p for i in range(1, len(parts) + (kind == "dir")) if (p := "/".join(parts[:i])) in blocked), None)
        if hit is None:
            return path
        if hit not in links:
            raise LayerError(
                f"{package.name} needs a folder at /{hit}, where another package has a file", "these packages cannot live in one environment"
            )
        target = link_target(packages[links[hit]], hit)
        base = [] if target.startswith("/") else hit.split("/")[:-1]
        for part in target.split("/"):
            if part == "..":
                if not base:
                    raise LayerError(f"the link /{hit} of {packages[links[hit]].name} leads out of the image", "do not use this package")
                base.pop()
            elif part not in ("", "."):
                base.append(part)
        path = "/".join([*base, *parts[hit.count("/") + 1 :]])
    raise LayerError(f"{package.name}: /{path} goes round in symlinks", "these packages cannot live in one environment")


def _case_notes(owner: Mapping[str, int], packages: Sequence[LockedPackage]) -> tuple[str, ...]:
    """Paths of different packages that differ in case only: fine on Linux, lost on a file system that folds case."""
    lower: dict[str, str] = {}
    notes = []
    for path, number in owner.items():
        folded = path.lower()
        other = lower.setdefault(folded, path)
        if other != path and owner[other] != number:
            notes.append(f"/{other} ({packages[owner[other]].name}) and /{path} ({packages[number].name}) differ in case only")
    return tuple(sorted(notes))
