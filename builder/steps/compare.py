"""The differences between two layers of one step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from builder.model import Layer
from builder.store.blobs import Store
from builder.trees.sources import layer_source


@dataclass(frozen=True, slots=True)
class StepDifference:
    """A path that two runs of a step left in different states."""

    step: str
    """The step's name."""
    path: str
    """Absolute path in the image."""
    what: str
    """``content``, ``mode``, ``size``, ``type``, ``target``: all that differ; or the only run."""


def compare_layers(step: str, first: Layer, second: Layer, store: Store) -> list[StepDifference]:
    """Return the differences between two layers of a step, by path."""
    if first.diff_id == second.diff_id:
        return []
    one, two = _members(first, store), _members(second, store)
    found = []
    for path in sorted(one.keys() | two.keys()):
        a, b = one.get(path), two.get(path)
        if a == b:
            continue
        if a is None or b is None:
            what = f"only in the {'second' if a is None else 'first'} run"
        else:
            what = ", ".join(name for name in a if a[name] != b[name])
        found.append(StepDifference(step, f"/{path}", what))
    return found


def _members(layer: Layer, store: Store) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for member, content in layer_source(layer, store)():
        digest = hashlib.sha256()
        for data in content:
            digest.update(data)
        found[member.path] = {
            "type": member.kind.name,
            "mode": member.mode,
            "size": member.size,
            "content": digest.hexdigest(),
            "target": member.target,
        }
    return found
