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
    rounds = [[name for name in found if name in by_name] for found in _rounds(graph)]
    rounds.append([name for name in graph if name in by_name])
    return [by_name[name] for found in rounds for name in sorted(found, reverse=True)]


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


def _rounds(graph: _Graph) -> Iterator[list[str]]:
    """Remove the nodes without needs from a graph, again and again; yield those of each round."""
    needed_by: dict[str, list[str]] = {}
    for node, needs in graph.items():
        for need in needs:
            needed_by.setdefault(need, []).append(node)
    found = [node for node, needs in graph.items() if not needs]
    while found:
        yield found
        following = []
        for node in found:
            del graph[node]
            for other in needed_by.get(node, ()):
                graph[other].discard(node)
                if not graph[other]:
                    following.append(other)
        found = following
