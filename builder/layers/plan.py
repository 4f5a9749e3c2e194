"""Which packages share a layer, and which package's file wins: pure functions of what the packages bring.

A package whose archive is large gets a layer of its own. Small ones are dealt into a fixed number of groups by the hash of
their *names*, so that a new version never moves another package to another layer: a bump costs that group's bytes and no more.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from builder.config.recipe import Layers
from builder.errors import LayerError
from builder.layers.entry import PackageIndex
from builder.model import LockedPackage, Manager

#: No layer's tar is larger where its files can be dealt out: registries and proxies have limits, and a retry costs less.
MAX_UNPACKED = 1 << 30
#: Bytes that a byte of an archive becomes, for want of a better guess: 2.6 to 4.2 in large wheels with compiled code.
_UNPACKED_PER_BYTE = 3.3
_INCOMPATIBLE = "these packages cannot live in one environment: lock other versions, or leave one out"


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
    unpacked: Mapping[str, int] | None = None,
) -> list[LayerPlan]:
    """Deals packages into layers.

    Args:
        packages: in link order.
        sizes: archive bytes by :attr:`LockedPackage.key`; None or missing counts as small.
        options: the recipe's.
        budget: how many layers there may be. The size from which a package has its own doubles until they fit.
        parts: how many layers a package needs by key, where more than one, see :func:`split_index`.
        unpacked: bytes of a package's files by key; a group of more than :data:`MAX_UNPACKED` is cut.

    Raises:
        LayerError: no plan fits the budget.
    """
    groups = max(1, min(options.groups, budget // 3))
    parts, unpacked = parts or {}, unpacked or {}
    threshold = options.own_layer_from
    while True:
        large = {p.key for p in packages if (sizes.get(p.key) or 0) >= threshold or parts.get(p.key, 1) > 1}
        plans, cuts = _deal(packages, large, groups, parts, unpacked)
        # Every group counts, empty or not, so that a package that comes or goes seldom moves the threshold.
        if sum(parts.get(key, 1) for key in large) + 2 * groups + cuts <= budget:
            return plans
        if not large - set(parts):
            raise LayerError(
                f"the packages need {len(plans)} layers, and {budget} are left above the base image",
                "choose a base image with fewer layers",
            )
        threshold *= 2


def _deal(
    packages: Sequence[LockedPackage],
    large: Set[str],
    groups: int,
    parts: Mapping[str, int],
    unpacked: Mapping[str, int],
) -> tuple[list[LayerPlan], int]:
    """The layers of one threshold, and how many of them are there because a group was cut."""
    plans: list[LayerPlan] = []
    cuts = 0
    managers: tuple[Manager, ...] = ("conda", "pip")
    for manager in managers:
        mine = [p for p in packages if p.manager == manager]
        buckets: dict[int, list[LockedPackage]] = {}
        for p in mine:
            if p.key not in large:
                buckets.setdefault(bucket(p, groups), []).append(p)
        for number, members in sorted(buckets.items()):
            pieces = _cut(members, unpacked)
            cuts += len(pieces) - 1
            plans += [
                LayerPlan(f"{manager} group {number + 1}: {_names(piece)}", tuple(piece)) for piece in pieces
            ]
        for p in sorted((p for p in mine if p.key in large), key=lambda p: p.name):
            count = parts.get(p.key, 1)
            for part in range(count):
                suffix = f" ({part + 1}/{count})" if count > 1 else ""
                plans.append(LayerPlan(f"{manager} {p.name} {p.version}{suffix}", (p,), part, count))
    return plans, cuts


def _cut(members: Sequence[LockedPackage], unpacked: Mapping[str, int]) -> list[list[LockedPackage]]:
    pieces: list[list[LockedPackage]] = [[]]
    running = 0
    for p in members:
        size = unpacked.get(p.key, 0)
        if pieces[-1] and running + size > MAX_UNPACKED:
            pieces.append([])
            running = 0
        pieces[-1].append(p)
        running += size
    return pieces


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


def likely_parts(sizes: Mapping[str, int | None]) -> dict[str, int]:
    """How many layers the largest packages will probably need, by key, where only their archives' sizes are known."""
    parts = {key: math.ceil((size or 0) * _UNPACKED_PER_BYTE / MAX_UNPACKED) for key, size in sizes.items()}
    return {key: n for key, n in parts.items() if n > 1}


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
    moved = _moved(packages, indexes, link_target)
    owner: dict[str, tuple[int, str]] = {}  # who brings a path last, and what its archive calls it
    several: dict[str, list[tuple[int, str]]] = {}
    for number, package in enumerate(packages):
        elsewhere = moved.get(package.key, {})
        for e in indexes[package.key].entries:
            if e.kind == "dir":
                continue
            path = elsewhere.get(e.path, e.path) if elsewhere else e.path
            if path in owner:
                several.setdefault(path, [owner[path]]).append((number, e.path))
            owner[path] = (number, e.path)
    leave_out: dict[str, set[str]] = {}
    conflicts = []
    for path, claims in sorted(several.items()):
        winner = claims[-1]
        for number, name in claims[:-1]:
            if (number, name) != winner:
                leave_out.setdefault(packages[number].key, set()).add(name)
        losers = sorted({number for number, _ in claims} - {winner[0]})
        if losers:
            conflicts.append(
                Conflict(path, packages[winner[0]].name, tuple(packages[n].name for n in losers))
            )
    notes = _case_notes({path: number for path, (number, _) in owner.items()}, packages)
    return Resolution(tuple(conflicts), {k: frozenset(v) for k, v in leave_out.items()}, moved, notes)


def _moved(
    packages: Sequence[LockedPackage],
    indexes: Mapping[str, PackageIndex],
    link_target: Callable[[LockedPackage, str], str],
) -> dict[str, dict[str, str]]:
    """Old path to new, by package key, of everything that lies below a symlink."""
    files: dict[str, int] = {}
    links: dict[str, int] = {}
    folders: set[str] = set()
    for number, package in enumerate(packages):
        for e in indexes[package.key].entries:
            if e.kind == "dir":
                folders.add(e.path)
                continue
            files[e.path] = number
            if e.kind == "symlink":
                links[e.path] = number
            else:
                links.pop(e.path, None)
            folders.add(e.path.rpartition("/")[0])
    folders = _with_ancestors(folders)
    blocked = folders & files.keys()
    if not blocked:
        return {}
    targets: dict[str, str] = {}

    def target(link: str) -> str:
        if link not in targets:
            targets[link] = link_target(packages[links[link]], link)
        return targets[link]

    moved: dict[str, dict[str, str]] = {}
    for package in packages:
        known: dict[str, str] = {}
        for e in indexes[package.key].entries:
            folder, _, name = (e.path, "", "") if e.kind == "dir" else e.path.rpartition("/")
            if folder not in known:
                known[folder] = _through(folder, blocked, links, target, package, packages)
            if known[folder] == folder:
                continue
            new = f"{known[folder]}/{name}".rstrip("/")
            if e.kind != "dir" and new in folders and new not in links:
                raise LayerError(
                    f"{package.name} has a file at /{new}, where another package has a folder", _INCOMPATIBLE
                )
            moved.setdefault(package.key, {})[e.path] = new
    return moved


def _with_ancestors(folders: Set[str]) -> set[str]:
    out: set[str] = set()
    for folder in folders:
        while folder and folder not in out:
            out.add(folder)
            folder = folder.rpartition("/")[0]
    return out


def _through(
    folder: str,
    blocked: Set[str],
    links: Mapping[str, int],
    target: Callable[[str], str],
    package: LockedPackage,
    packages: Sequence[LockedPackage],
) -> str:
    """A folder's path with the symlinks on its way followed."""
    path = folder
    for _ in range(16):
        parts = path.split("/")
        hit = next((p for i in range(1, len(parts) + 1) if (p := "/".join(parts[:i])) in blocked), None)
        if hit is None:
            return path
        if hit not in links:
            raise LayerError(
                f"{package.name} needs a folder at /{hit}, where another package has a file", _INCOMPATIBLE
            )
        text = target(hit)
        base = [] if text.startswith("/") else hit.split("/")[:-1]
        for part in text.split("/"):
            if part == "..":
                if not base:
                    name = packages[links[hit]].name
                    raise LayerError(
                        f"the link /{hit} of {name} leads out of the image", "do not use this package"
                    )
                base.pop()
            elif part not in ("", "."):
                base.append(part)
        path = "/".join([*base, *parts[hit.count("/") + 1 :]])
    raise LayerError(f"{package.name}: /{folder} goes round in symlinks", _INCOMPATIBLE)


def _case_notes(owner: Mapping[str, int], packages: Sequence[LockedPackage]) -> tuple[str, ...]:
    """Paths of different packages that differ in case only: fine on Linux, lost on a file system that folds case."""
    lower: dict[str, str] = {}
    notes = []
    for path, number in owner.items():
        folded = path.lower()
        other = lower.setdefault(folded, path)
        if other != path and owner[other] != number:
            notes.append(
                f"/{other} ({packages[owner[other]].name}) and /{path} ({packages[number].name}) differ in case only"
            )
    return tuple(sorted(notes))
