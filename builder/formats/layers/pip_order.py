"""The order in which pip installs wheels, which decides whose file stays where several contain it.

pip installs dependencies first (``Resolver.get_installation_order`` of pip 23 to 26). It removes
the packages that need no other one, then those that need only removed ones, and so on. The packages
of one round are installed in the reverse order of their names::

    jupyter -> notebook, jupyter-console       1. traitlets, six           need nothing
    notebook -> jupyter-core                   2. jupyter-core
    jupyter-console -> jupyter-core            3. notebook, jupyter-console
    jupyter-core -> traitlets, six             4. jupyter                  its files win

What is left needs a cycle: it comes last, in the reverse order of names. pip's own order of these
differs from version to version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.core.markers import marker_environment, with_extras
from builder.core.model import LockedPackage

from .entry import LinkContext

#: The needs of each node: a package's name, or with extras ``name[extra]``, which needs the package
#: too.
_Graph = dict[str, set[str]]


def pip_order(
    packages: Sequence[LockedPackage], requires: Mapping[str, Sequence[str]], context: LinkContext
) -> list[LockedPackage]:
    """Return the packages in the order in which pip installs them.

    Args:
        packages: all pip packages of an environment, in any order.
        requires: by package key, the ``Requires-Dist`` texts of the wheels' METADATA.
        context: the Python and the platform of the markers.
    """
    by_name: dict[str, LockedPackage] = {canonicalize_name(p.name): p for p in packages}
    parsed = {name: _requirements(requires.get(p.key, ())) for name, p in by_name.items()}
    graph = _graph(parsed, marker_environment(context.platform, context.python))
    rounds = list(_rounds(graph))
    rounds.append(tuple(graph.keys() - set[str]().union(*rounds)))
    order = [name for found in rounds for name in sorted(found, reverse=True)]
    return [by_name[name] for name in order if name in by_name]


def _requirements(texts: Sequence[str]) -> list[Requirement]:
    """Return the valid ``Requires-Dist`` texts; pip installs no wheel that has others."""
    found = []
    for text in texts:
        with contextlib.suppress(InvalidRequirement):
            found.append(Requirement(text))
    return found


def _graph(parsed: Mapping[str, Sequence[Requirement]], environment: Mapping[str, str]) -> _Graph:
    """Return the nodes that are reachable from the packages, each with what it needs.

    A need that is not a pip package of this environment, because conda provides it, is a node
    without needs.
    """
    graph: _Graph = {}
    todo: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in sorted(parsed)]
    while todo:
        name, extras = todo.pop()
        node = with_extras(name, extras)
        if node in graph:
            continue
        graph[node] = {name} if extras else set()
        for requirement in parsed.get(name, ()):
            if _applies(requirement, extras, environment):
                needed = canonicalize_name(requirement.name)
                needed_extras = frozenset(requirement.extras)
                graph[node].add(with_extras(needed, needed_extras))
                todo.append((needed, needed_extras))
    return graph


def _applies(
    requirement: Requirement, extras: Collection[str], environment: Mapping[str, str]
) -> bool:
    """Return whether a requirement's marker is true, with one of the extras or without any."""
    marker = requirement.marker
    cases = [{**environment, "extra": extra} for extra in sorted(extras) or [""]]
    return marker is None or any(marker.evaluate(case) for case in cases)


def _rounds(graph: _Graph) -> Iterator[tuple[str, ...]]:
    """Yield the nodes without needs, then those that need only these, and so on; none of a cycle."""
    sorter = TopologicalSorter(graph)
    with contextlib.suppress(CycleError):
        sorter.prepare()
    while found := sorter.get_ready():
        yield found
        sorter.done(*found)
