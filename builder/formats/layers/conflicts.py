"""Decides which package's file wins if several packages contain the same path ("clobbering").

conda links packages one after the other into one folder, so a file of a later package overwrites
that of an earlier one. An image has no such order: layers are stacked by size and group. So the
winner is decided here, before any layer is written, and the file is left out of all other packages:

    link order     contains                  written to its layer
    1. a (conda)   share/x  share/only-a     share/only-a
    2. b (conda)   share/x  share/y          share/y
    3. c (pip)     share/x                   share/x

Link order: conda packages (:mod:`builder.formats.layers.conda_order`), then wheels
(:mod:`builder.formats.layers.pip_order`).

Invariant: after that, each path (except directories) is in exactly one layer. So the order of
layers does not change the image, and an image holds no hidden copies.

One more case needs care. A folder of one package may be a symlink of another one:

    1. a           lib64 -> lib   lib/x
    2. b           lib64/x        lib64/y

On disk, b's files are written through the link, to ``lib/x`` and ``lib/y``, and the first
overwrites a's. In a layer, ``lib64/x`` would turn the symlink into a folder instead. So b's files
are *moved*: they are written to the layer under the path where the link points, and conflicts are
decided with these paths:

    moved          b: lib64/x -> lib/x, lib64/y -> lib/y
    left out       a: lib/x

And a package may contain a compiled module (``__pycache__/x.cpython-311.pyc``) whose module is that
of another package. It is left out: Python would run it in place of the module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from builder.core.errors import LayerError
from builder.core.model import LockedPackage
from builder.formats.trees.member import ancestors, walk

from .entry import IndexEntry, PackageIndex

#: Returns the text of a package's symlink: ``(package, path)``.
LinkTarget = Callable[[LockedPackage, str], str]

_INCOMPATIBLE = (
    "these packages cannot share one environment: lock other versions, or remove one of them"
)
#: ``x/__pycache__/name.cpython-311.opt-1.pyc``.
_COMPILED = re.compile(
    r"(?P<folder>.*/)__pycache__/(?P<name>[^/]+?)\.[a-z]+-?\d+[a-z]?(?:\.opt-\w+)?\.pyc", re.DOTALL
)


def module_of(path: str) -> str:
    """Return the module that a file in ``__pycache__`` was compiled from; empty for others."""
    match = _COMPILED.fullmatch(path) if path.endswith(".pyc") else None
    return f"{match['folder']}{match['name']}.py" if match else ""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A file that several packages contain."""

    path: str
    winner: str
    """Name of the package that is linked last; its file is in the image."""
    losers: tuple[str, ...]
    """Names of the other packages."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which paths each package writes to its layer."""

    conflicts: tuple[Conflict, ...]
    leave_out: Mapping[str, frozenset[str]]
    """By package key: paths (as in the package's index) that are not written."""
    moved: Mapping[str, Mapping[str, str]]
    """By package key: paths that are written under another path."""


#: Packages in link order, with what they contain.
_Brought = Sequence[tuple[LockedPackage, Sequence[IndexEntry]]]


class _Claim(NamedTuple):
    """A package that contains a path. A named tuple: each file of an environment needs one."""

    number: int
    """The package's place in link order."""
    path: str
    """The path in the package's index, which differs from the image's if it is moved."""


def resolve_conflicts(
    packages: Sequence[LockedPackage],
    indexes: Mapping[str, PackageIndex],
    link_target: LinkTarget,
    prefix: str = "",
    removed: Mapping[str, Set[str]] = MappingProxyType({}),
) -> Resolution:
    """Decide every path that more than one package contains: the package that is linked last wins.

    Args:
        packages: in link order.
        indexes: by package key.
        link_target: reads the text of a symlink. It is called only for links that other packages
            have files below.
        prefix: folder of the environment in the image. Links do not lead files out of it.
        removed: by package key, paths that are left out in any case.

    Raises:
        LayerError: one package has a file where another needs a folder, or a link points outside
            the prefix.
    """
    root = f"{prefix.strip('/')}/".lstrip("/")
    brought = [(package, indexes[package.key].entries) for package in packages]
    moved = _Redirects(brought, link_target, root).moved()
    last, contested, compiled = _claims(brought, moved)
    leave_out = {key: set(paths) for key, paths in removed.items()}
    conflicts = []
    for path, claims in sorted(contested.items()):
        winner = claims[-1]
        for claim in {*claims} - {winner}:
            leave_out.setdefault(packages[claim.number].key, set()).add(claim.path)
        losers = sorted({claim.number for claim in claims} - {winner.number})
        if losers:  # none if one package contains both names of the file
            names = tuple(packages[number].name for number in losers)
            conflicts.append(Conflict(path, packages[winner.number].name, names))
    for module, claim in compiled:
        if last.get(module, claim).number != claim.number:
            leave_out.setdefault(packages[claim.number].key, set()).add(claim.path)
    left_out = {key: frozenset(paths) for key, paths in leave_out.items()}
    return Resolution(tuple(conflicts), left_out, moved)


def _claims(
    brought: _Brought, moved: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, _Claim], dict[str, list[_Claim]], list[tuple[str, _Claim]]]:
    """Return the last claim of each image path, all claims of contested paths, and modules.

    Each compiled module comes with the path of its source.
    """
    last: dict[str, _Claim] = {}
    contested: dict[str, list[_Claim]] = {}
    compiled: list[tuple[str, _Claim]] = []
    for number, (package, entries) in enumerate(brought):
        new_paths = moved.get(package.key, {})
        for e in entries:
            if e.kind == "dir":
                continue
            path = new_paths.get(e.path, e.path)
            claim = _Claim(number, e.path)
            if path in last:
                contested.setdefault(path, [last[path]]).append(claim)
            last[path] = claim
            if module := module_of(path):
                compiled.append((module, claim))
    return last, contested, compiled


# files below symlinks -----------------------------------------------------------------------------


class _Redirects:
    """Where files go whose folder is a symlink (or a file) of another package."""

    def __init__(self, brought: _Brought, link_target: LinkTarget, root: str) -> None:
        self._brought = brought
        self._root = root
        self._link_target = link_target
        self._targets: dict[str, str] = {}
        #: Symlinks that win their path, with the number of the package.
        self._links: dict[str, int] = {}
        files: set[str] = set()
        folders: set[str] = set()
        for number, (_, entries) in enumerate(brought):
            for e in entries:
                if e.kind == "dir":
                    folders.add(e.path)
                    continue
                folders.add(e.path.rpartition("/")[0])
                files.add(e.path)
                if e.kind == "symlink":
                    self._links[e.path] = number
                else:
                    self._links.pop(e.path, None)
        self._folders = {*folders, *chain.from_iterable(map(ancestors, folders))}
        #: Paths that are a folder of one package and a symlink or file of another one.
        self._blocked = self._folders & files

    def moved(self) -> dict[str, dict[str, str]]:
        """Return old path to new path, by package key, of everything that is below a symlink.

        Raises:
            LayerError: see :meth:`_of_package`.
        """
        if not self._blocked:  # nearly always
            return {}
        moved = {package.key: self._of_package(package, own) for package, own in self._brought}
        return {key: paths for key, paths in moved.items() if paths}

    def _of_package(self, package: LockedPackage, entries: Sequence[IndexEntry]) -> dict[str, str]:
        """Return old path to new path of the package's entries that are moved.

        Raises:
            LayerError: a file is where another package has a folder, or a link points outside the
                prefix.
        """
        moved: dict[str, str] = {}
        followed: dict[str, str] = {}
        for e in entries:
            folder, _, name = (e.path, "", "") if e.kind == "dir" else e.path.rpartition("/")
            if folder not in followed:
                followed[folder] = self._follow(folder, package)
            if followed[folder] == folder:
                continue
            new = f"{followed[folder]}/{name}".rstrip("/")
            if e.kind != "dir" and new in self._folders and new not in self._links:
                what = f"{package.name} has a file at /{new}, where another package has a folder"
                raise LayerError(what, _INCOMPATIBLE)
            moved[e.path] = new
        return moved

    def _follow(self, folder: str, package: LockedPackage) -> str:
        """Return the folder's path after following all symlinks on its way."""
        link = ""

        def link_text(path: str) -> str | None:
            nonlocal link
            if path not in self._links:
                return None
            link = path
            return self._target(path)

        found = ""
        try:
            for found in walk(folder, link_text):
                if found in self._blocked:
                    raise LayerError(
                        f"{package.name} needs a folder at /{found}, where another package has a file",
                        _INCOMPATIBLE,
                    )
        except RecursionError:
            problem = f"{package.name}: the symlinks on the way to /{folder} form a loop"
            raise LayerError(problem, _INCOMPATIBLE) from None
        except IndexError:
            raise self._outside(link, "image") from None
        if link and not f"{found}/".startswith(self._root):
            raise self._outside(link, "environment")
        return found

    def _outside(self, link: str, of: str) -> LayerError:
        package, _ = self._brought[self._links[link]]
        hint = "do not use this package"
        return LayerError(f"the link /{link} of {package.name} points outside the {of}", hint)

    def _target(self, link: str) -> str:
        """Return the text of a symlink."""
        if link not in self._targets:
            package, _ = self._brought[self._links[link]]
            self._targets[link] = self._link_target(package, link)
        return self._targets[link]
