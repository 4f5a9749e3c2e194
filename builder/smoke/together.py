"""What several changes say together: rules that one figure alone cannot follow.

``together`` applies them, in this order. docs/grading.md states each rule in words.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from builder.smoke.change import Change
from builder.smoke.kinds import CONTRAST, CONTRAST_OF, PRODUCTS
from builder.smoke.machines import DRIVER, POWER_LIMIT

#: Runs of the old image below which a comparison says how few they are.
_ENOUGH_RUNS = 3
_SINGLE = "not counted, because other GPUs of the node are not slower"


def together(changes: Sequence[Change]) -> list[Change]:
    """The changes with the outcomes that they have beside each other."""
    return _only_with_others(_without_single_gpus(_with_contrasts(changes)))


def _with_contrasts(changes: Sequence[Change]) -> list[Change]:
    """The changes; a product that fell on another GPU, where the other products did not, is slower.

    GPUs of one name differ in their clock under load, and all products of tensor cores follow it. So the
    differences between the products of one GPU say more than each of them. A lower power limit slows them
    differently, so with another limit they are not compared.
    """
    products: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        other_power = any(text.startswith(POWER_LIMIT) for text in change.differences)
        evaluated = change.on_gpu and change.evaluated
        if change.id in PRODUCTS and evaluated and not change.same_device and not other_power:
            products[change.device].append(change)
    return [_contrasted(change, products[change.device]) for change in changes]


def _contrasted(change: Change, products: Sequence[Change]) -> Change:
    """The change; ``slower`` if it fell against its GPU's other products by more than :data:`CONTRAST`."""
    if change not in products or len(products) < CONTRAST_OF:
        return change
    others = statistics.median_low(math.log(other.ratio) for other in products if other is not change)
    fell = 1 - change.ratio / math.exp(others)
    if fell <= max(CONTRAST, change.run_limit) or change.ratio >= 1 - change.floor:
        return change
    other_driver = any(text.startswith(DRIVER) for text in change.differences)
    cause = "the image or the driver" if other_driver else "the image"
    reason = f"it fell by {fell:.0%} against its GPU's other products, so the cause is {cause}, not the GPU"
    return replace(change, outcome="slower", reason=reason)


def _without_single_gpus(changes: Sequence[Change]) -> list[Change]:
    """The changes; on several other GPUs a figure is slower only if the median of these GPUs is, too.

    An image slows all GPUs. A single slow one is a matter of its node: the grade compares it with its peers.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    for change in changes:
        if change.on_gpu and not change.same_device and change.evaluated:
            ratios[change.id].append(change.ratio)
    out = []
    for change in changes:
        others = ratios[change.id] if change.on_gpu and not change.same_device else []
        single = len(others) > 1 and statistics.median(others) >= 1 - change.floor
        if change.outcome == "slower" and single:
            change = replace(change, outcome="same", reason=_SINGLE)
        out.append(change)
    return out


def _only_with_others(changes: Sequence[Change]) -> list[Change]:
    """The changes; those that do not decide alone are ``slower`` if something that decides is slower."""
    if not any(change.outcome == "slower" for change in changes):
        return list(changes)
    return [replace(c, outcome="slower", reason="") if c.outcome == "host" else c for c in changes]


def doubts(changes: Sequence[Change]) -> Iterator[str]:
    """What was not evaluated, what remains unsure, and what would make it sure."""
    for reason in sorted({c.reason for c in changes if c.outcome == "busy"}):
        yield f"{reason} ({_names(c for c in changes if c.reason == reason)})"
    inside = [c for c in changes if c.on_gpu and c.outcome == "same" and c.ratio < 1 - c.floor]
    single = [c for c in inside if c.reason == _SINGLE]
    if single:
        yield f"slower on single GPUs of another node, where others are not: {_names(single)}"
    unsure = [c for c in inside if c not in single]
    if unsure:
        shown = sorted({f"{c.id} {1 - c.ratio:.0%} (limit {c.limit:.0%})" for c in unsure})
        yield f"slower by less than runs and GPUs differ: {', '.join(shown)}"
    doubtful = [
        c
        for c in (*(c for c in changes if c.outcome == "slower"), *unsure)
        if not c.same_device or c.runs[0] < _ENOUGH_RUNS
    ]
    if doubtful:
        runs, gpus = doubtful[0].runs[0], doubtful[0].devices[0]
        where = f" on {_count(gpus, 'GPU')}" if doubtful[0].on_gpu else ""
        yield (
            f"compared with {_count(runs, 'old run')}{where}; builder smoke --ab OLD NEW runs both images in "
            "turn on one node, which is the only fair comparison"
        )


def _names(changes: Iterable[Change]) -> str:
    return ", ".join(sorted({change.id for change in changes}))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
