"""The results of all ranks as one."""

from __future__ import annotations

import statistics
from typing import Tuple

from ..core import Item, finding
from ..schema import SEVERITY
from .rank import Rank

#: A result and the rank that it comes from.
Result = Tuple[Rank, Item]

#: A device counts as slow below this fraction of the others' speed.
_EVEN = 0.85
#: How many slow devices a message names.
_NAMED = 6


def merged(results: list[Result], ranks: int, figures: bool = False) -> list[Item]:
    """One item per id: the worst result, with the rank it comes from.

    Args:
        results: of probes or of measurements, in the order of ranks.
        ranks: how many ranks there are.
        figures: the results are measurements: each item gets the figures of all ranks.
    """
    by_id: dict[str, list[Result]] = {}
    for rank, item in results:
        by_id.setdefault(item["id"], []).append((rank, item))

    out = []
    for found in by_id.values():
        rank, worst = max(found, key=_badness)
        item = dict(worst)
        if worst["status"] in ("warn", "fail") and ranks > 1:
            item["seen"] = f"rank {rank.number} ({rank.host}): {worst['seen']}"
            if not figures:
                item["ranks"] = [
                    other.number for other, result in found if result["status"] == worst["status"]
                ]
        if figures and len(found) > 1:
            item["ranks"] = [_figures(*result) for result in found]
        out.append(item)
    return out


def _badness(result: Result) -> tuple[int, float]:
    """Severity; if equal, the earlier one is worse, because it may have caused the others."""
    rank, item = result
    return SEVERITY[item["status"]], -rank.when.get(item["id"], 0.0)


def _figures(rank: Rank, item: Item) -> Item:
    """The part of one rank's measurement that goes into the report."""
    return {
        "rank": rank.number,
        "host": rank.host,
        "device": str(item.get("device", "")),
        "status": item["status"],
        **{key: value for key, value in item.items() if key.startswith(("median_", "mad_"))},
    }


def uneven_ranks(measurements: list[Item]) -> list[Item]:
    """A finding about ranks whose device is slower than the others'; none if nothing can be compared."""
    slow: list[str] = []
    compared = 0
    for item in measurements:
        ranks = [rank for rank in item.get("ranks", []) if rank["status"] == "pass"]
        key = next((key for key in item if key.startswith("median_")), "")
        # A slow rank slows all-reduce down for all. Training measures the software's overhead.
        if len(ranks) < 2 or not key or item["id"].startswith(("allreduce", "training")):
            continue
        compared += 1
        slow += _slow_ranks(item["id"], key, ranks)

    if not compared:
        return []
    if slow:
        advice = (
            "a slow rank slows all others down: check that GPU's clocks and temperature, and who else uses it"
        )
        return [finding("ranks.even", "warn", "slower than the others: " + "; ".join(slow[:_NAMED]), advice)]
    return [finding("ranks.even", "pass", f"within 15 % of each other in {compared} measurements")]


def _slow_ranks(name: str, key: str, ranks: list[Item]) -> list[str]:
    values = [rank[key] for rank in ranks]
    usual = statistics.median(values) if len(values) > 2 else max(values)
    slow = []
    for rank in ranks:
        if rank[key] < _EVEN * usual:
            who = f"rank {rank['rank']} ({rank['host']}, {rank['device']})"
            slow.append(f"{who}: {100 * rank[key] / usual:.0f} % in {name}")
    return slow
