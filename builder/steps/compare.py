"""What differs between two layers of one step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from builder.model import Layer
from builder.store.blobs import Store
from builder.trees.member import Content, Member
from builder.trees.sources import layer_source


@dataclass(frozen=True, slots=True)
class StepDifference:
    """A path that two runs of a step left in different states."""

    step: str
    """The step's name."""
    path: str
    """Absolute path in the image."""
    what: str
    """``content``, ``mode``, ``size``, ``type``, ``target``: all that differ; or which run lacks
    the path.
    """


def compare_layers(step: str, first: Layer, second: Layer, store: Store) -> list[StepDifference]:
    """Return the differences between two layers of a step, by path; empty if the layers are
    equal.
    """
    if first.diff_id == second.diff_id:
        return []
    one, two = _members(first, store), _members(second, store)
    found = []
    for path in sorted(one.keys() | two.keys()):
        a, b = one.get(path), two.get(path)
        if a is None or b is None:
            found.append(
                StepDifference(
                    step, f"/{path}", f"only in the {'second' if a is None else 'first'} run"
                )
            )
        elif a != b:
            what = ", ".join(name for name in a if a[name] != b[name])
            found.append(StepDifference(step, f"/{path}", what))
    return found


def _members(layer: Layer, store: Store) -> dict[str, dict[str, object]]:
    return {
        member.path: _described(member, content) for member, content in layer_source(layer, store)()
    }


def _described(member: Member, content: Content) -> dict[str, object]:
    digest = hashlib.sha256()
    for data in content:
        digest.update(data)
    return {
        "type": member.kind.name,
        "mode": member.mode,
        "size": member.size,
        "content": digest.hexdigest(),
        "target": member.target,
    }
