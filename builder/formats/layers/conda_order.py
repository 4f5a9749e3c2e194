"""The order in which conda packages are linked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.core.errors import LayerError
from builder.core.model import LockedPackage

#: Names of a package's dependencies, by name, sorted.
_Needs = Mapping[str, Sequence[str]]


def link_order(packages: Sequence[LockedPackage]) -> list[LockedPackage]:
    """Return the packages in link order. If two contain the same file, the later one wins.

    Dependencies come first. Where they leave a choice the order is rattler's
    (``PackageRecord.sort_topologically``), so the same package wins as with ``rattler.install``.
    The order depends on names and dependencies alone, not on the order of ``packages``. A cycle is
    cut so that its noarch packages come last.

    Raises:
        LayerError: a name appears twice.
    """
    by_name: dict[str, LockedPackage] = {}
    for p in packages:
        if p.name in by_name:
            files = f"{by_name[p.name].filename} and {p.filename}"
            raise LayerError(f"the lock has {p.name} twice: {files}", "lock again")
        by_name[p.name] = p

    needs = {name: sorted({d.lower() for d in p.dependencies}) for name, p in by_name.items()}
    for name, dependency in _cuts(needs, by_name):
        needs[name] = [n for n in needs[name] if n != dependency]

    required = set[str]().union(*needs.values())
    visited: set[str] = set()
    order = _visit(sorted(by_name.keys() - required), needs, visited)
    while left := by_name.keys() - visited:  # what is only reachable from a cycle
        order += _visit(sorted(left), needs, visited)
    return [by_name[name] for name in order]


def _visit(roots: Sequence[str], needs: _Needs, visited: set[str]) -> list[str]:
    """Return the roots and everything they need, dependencies first.

    This is a depth-first search from the last root to the first.

    A name is put on the stack a second time, marked complete, below its dependencies. It is emitted
    when that comes up.
    """
    order = []
    stack = [(name, False) for name in roots]
    while stack:
        name, complete = stack.pop()
        if complete:
            order.append(name)
        elif name not in visited:
            visited.add(name)
            stack.append((name, True))
            stack += [(d, False) for d in needs[name] if d in needs]
    return order


def _cuts(needs: _Needs, by_name: Mapping[str, LockedPackage]) -> list[tuple[str, str]]:
    """Return dependencies (name, dependency) to ignore, as ``sort_topologically`` of rattler.

    In each cycle this is the first edge from a package for one platform to a noarch package. At an
    edge in the other direction, and at the last edge of the cycle, rattler ignores the opposite
    edge. That edge may not exist; then the cycle remains, and the search in :func:`_visit` breaks
    it at its first visited package.
    """
    cuts = []
    for cycle in _cycles(needs):
        for i, name in enumerate(cycle):
            following = cycle[(i + 1) % len(cycle)]
            is_arch, following_is_arch = (by_name[n].subdir != "noarch" for n in (name, following))
            if is_arch and not following_is_arch:
                cuts.append((name, following))
                break
            if (following_is_arch and not is_arch) or i == len(cycle) - 1:
                cuts.append((following, name))
                break
    return cuts


def _cycles(needs: _Needs) -> list[list[str]]:
    """Return the cycles that a depth-first search finds: one for each edge back into its path."""
    found = []
    visited: set[str] = set()
    for start in sorted(needs):
        if start in visited:
            continue
        visited.add(start)
        path = [start]
        place = {start: 0}  # of each name in path
        # the dependencies that are not visited yet, for each name in path
        todo = [iter(needs[start])]
        while todo:
            name = next(todo[-1], None)
            if name is None:
                todo.pop()
                del place[path.pop()]
            elif name in place:
                found.append(path[place[name] :])
            elif name in needs and name not in visited:
                visited.add(name)
                place[name] = len(path)
                path.append(name)
                todo.append(iter(needs[name]))
    return found
