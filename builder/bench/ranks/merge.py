"""The results of all ranks as one."""

from __future__ import annotations

from typing import Tuple

from ..core import Item, median_key
from ..schema import SEVERITY
from .rank import Rank

#: A result and the rank that it comes from.
Result = Tuple[Rank, Item]

#: Beginnings of the fields that the report has for each rank.
_OF_RANK = (
    "median_", "mad_", "sustained_", "clock_mhz", "power_w", "temperature_c", "throttled", "bound",
)  # fmt: skip


def merged(results: list[Result], ranks: int, figures: bool = False) -> list[Item]:
    """One item per id: the worst result, with the rank it comes from.

    If all passed, that is the slowest device's: a job that uses all of them is as fast as the slowest.

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
        elif worst["id"].startswith("gpu.") and worst["status"] == "pass" and ranks > 1:
            passed = sum(result["status"] == "pass" for _, result in found)
            item["seen"] += f"; {passed} ranks passed"  # the text is of one rank's GPU
        if figures and len(found) > 1:
            item["ranks"] = [_figures(*result) for result in found]
        out.append(item)
    return out


def _badness(result: Result) -> tuple[int, float, float]:
    """Severity; if equal, the slower one is worse, then the earlier one: it may have caused the others."""
    rank, item = result
    return SEVERITY[item["status"]], _slowness(item), -rank.when.get(item["id"], 0.0)


def _slowness(item: Item) -> float:
    """Larger for the slower one of two devices; the same for all results that have no figures."""
    key = median_key(item)
    if not key or item["status"] == "fail":
        return 0.0
    value = float(item[key] or 0.0)
    return value if item.get("better") == "lower" else -value


def _figures(rank: Rank, item: Item) -> Item:
    """The part of one rank's measurement that goes into the report."""
    return {
        "rank": rank.number,
        "host": rank.host,
        "device": str(item.get("device", "")),
        "status": item["status"],
        **{key: value for key, value in item.items() if key.startswith(_OF_RANK) or key == "size"},
    }
