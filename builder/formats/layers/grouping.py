"""Decides which packages share a layer. Pure functions of names, sizes and the recipe's options.

A package with a large archive gets a separate layer. Small packages are distributed over a fixed
number of groups by a hash of their *names*. So a new version never moves another package to another
layer: an update changes one group's layer and no other.

    name      hash mod 3     layers before               layers after numpy 2.0 -> 2.1
    attrs     1              pip group 2: attrs, six     the same digest
    idna      0              pip group 1: idna           the same digest
    numpy     (large)        pip numpy 2.0               pip numpy 2.1
    six       1

Large packages are below the groups, the largest at the bottom. Docker identifies a layer by the
layers below it: after an update it downloads and unpacks every layer above the changed one again,
and podman unpacks them again. An update of a small package then costs the small layers above it,
not torch. The content of the image does not depend on the order, because layers of packages have no
file in common.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from builder.core.model import LayerContent, LayerOptions, LockedPackage, Manager
from builder.core.text import listed

from .entry import PackageIndex

#: Largest tar of a layer, in bytes, where its files can be distributed. Registries and proxies have
#: limits, and a retry costs less.
MAX_UNPACKED = 1 << 30
#: Names in the title of a group.
_TITLE_NAMES = 6
#: How the title of a layer of compiled modules begins; the title of the packages' layer follows.
BYTECODE_TITLE = "bytecode of "
_TITLE = re.compile(rf"({BYTECODE_TITLE})?(conda|pip) (?:group (\d+)(?=: )|(\S+))")
#: conda's groups are below pip's.
_MANAGERS: tuple[Manager, ...] = ("conda", "pip")


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """A layer to build."""

    content: LayerContent
    title: str
    """Name in the history: ``pip torch 2.6.0 (1/3)``, ``conda group 2: idna, six``."""
    packages: tuple[LockedPackage, ...]
    """In link order."""
    part: int = 0
    """The part of its one package that the layer holds, from 0."""
    parts: int = 1
    """How many layers the package is split into; more than 1 if it is too large for one."""


def plan_lock(
    packages: Sequence[LockedPackage],
    sizes: Mapping[str, int],
    options: LayerOptions,
    *,
    budget: int,
    parts: Mapping[str, int] = MappingProxyType({}),
) -> list[LayerPlan]:
    """Return the layers that the packages are distributed over, from the bottom up.

    Args:
        packages: in link order.
        sizes: archive bytes by :attr:`LockedPackage.key`; missing counts as small.
        options: the recipe's ``layers:``.
        budget: the number of layers to plan for. The size from which a package gets its own layer
            doubles until they fit. A budget that is too small for a group of each manager, or for
            the parts of a package, is exceeded.
        parts: the number of layers a package needs, by key, where it is more than one, see
            :func:`split_index`.
    """
    groups = max(1, min(options.groups, budget // 3))
    threshold = options.own_layer_from
    while True:
        large = parts.keys() | {p.key for p in packages if sizes.get(p.key, 0) >= threshold}
        # Empty groups count too, so that the threshold rarely moves when a package is added or
        # removed.
        needed = sum(parts.get(key, 1) for key in large) + 2 * groups
        if needed <= budget or large == parts.keys():
            break
        threshold *= 2

    def from_the_bottom(package: LockedPackage) -> tuple[int, int, str]:
        # Sizes count as powers of two, so that an update rarely moves a package.
        size = sizes.get(package.key, 0)
        return -size.bit_length(), _MANAGERS.index(package.manager), package.name

    alone = sorted((p for p in packages if p.key in large), key=from_the_bottom)
    own = [plan for p in alone for plan in _own_layers(p, parts.get(p.key, 1))]
    return [*own, *_groups([p for p in packages if p.key not in large], groups)]


def _groups(packages: Sequence[LockedPackage], groups: int) -> Iterator[LayerPlan]:
    """Yield the layers of small packages, conda's first."""
    members: dict[tuple[int, int], list[LockedPackage]] = {}
    for p in packages:
        group = _MANAGERS.index(p.manager), name_bucket(f"{p.manager} {p.name}", groups)
        members.setdefault(group, []).append(p)
    for (manager, number), found in sorted(members.items()):
        content = LayerContent("packages", _MANAGERS[manager], group=number + 1)
        names = listed([p.name for p in found], _TITLE_NAMES)
        yield LayerPlan(content, f"{content.name}: {names}", tuple(found))


def _own_layers(package: LockedPackage, parts: int) -> list[LayerPlan]:
    """Return the layers of one large package."""
    content = LayerContent("packages", package.manager, package.name)
    title = f"{content.name} {package.version}"
    titles = [f"{title} ({n + 1}/{parts})" for n in range(parts)] if parts > 1 else [title]
    return [LayerPlan(content, text, (package,), n, parts) for n, text in enumerate(titles)]


def content_of(title: str) -> LayerContent | None:
    """Return the content of a layer by its title, which the history of an image holds.

    For layers of an image that is read, from a layout or a registry: :attr:`Layer.content` is not
    in it. None for a layer that holds no packages.
    """
    if not (found := _TITLE.match(title)):
        return None
    bytecode, manager, group, package = found.groups()
    return LayerContent(
        "bytecode" if bytecode else "packages",
        "conda" if manager == "conda" else "pip",
        package or "",
        int(group or 0),
    )


def name_bucket(name: str, count: int, *, digest_bytes: int = 8) -> int:
    """Return the bucket of a name, from 0 to ``count - 1``.

    Args:
        name: the text to hash (sha256).
        count: the number of buckets.
        digest_bytes: how many leading bytes of the hash are used. Layers use 8, SIF partitions 4;
            another number would move packages of published images to other layers or partitions.
    """
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:digest_bytes], "big") % count


def split_index(index: PackageIndex, limit: int = MAX_UNPACKED) -> list[frozenset[str]]:
    """Return the paths of each part of a package, in the archive's order.

    No part has more than ``limit`` bytes, unless a single file has. A hard link is in the part of
    the file that it repeats, because a hard link cannot point to another layer.
    """
    part_of: dict[str, int] = {}
    number = total = 0
    for e in index.entries:
        if e.kind == "hardlink" and e.target in part_of:
            part_of[e.path] = part_of[e.target]
            continue
        if total and total + e.size > limit:
            number += 1
            total = 0
        total += e.size
        part_of[e.path] = number

    parts: list[set[str]] = [set() for _ in range(number + 1)]
    for path, n in part_of.items():
        parts[n].add(path)
    return [frozenset(p) for p in parts]
