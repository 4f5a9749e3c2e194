"""The goals of builder's speed, and whether the results of a run meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.floor import total
from benchmarks.workloads import BUILDER, NO_BYTECODE, PIP, UV, UV_NO_COMPILE

#: Seconds that the flat SIF of an image of this size took before it was made faster; the goal is a half.
_FLAT_SIF_BEFORE_S = 41.0
#: The case of a start whose limit is a fifth of the rival's, not the whole.
AFTER_BUMP = "pull and start after a bump"


@dataclass(frozen=True)
class Goal:
    """A measured value and its limit."""

    text: str
    value: float
    limit: float
    unit: str = ""
    start: bool = False
    """It is about a start or an import, which have a table of their own."""

    @property
    def met(self) -> bool:
        return self.value <= self.limit


def middle(runs: Sequence[Mapping[str, Any]], figure: str) -> float:
    """The median of a figure over repetitions."""
    return float(median(run[figure] for run in runs))


def goals(results: Mapping[str, Any]) -> list[Goal]:
    """Each goal whose figures are in the results."""
    found: list[Goal] = []
    for part in (_of_builds, _of_sifs, _of_starts):
        found += part(results["workloads"])
    return found


def _of_builds(workloads: Mapping[str, Any]) -> Iterator[Goal]:
    torch = workloads.get("torch")
    if torch is None:
        return
    ours, plain = torch["ways"][BUILDER], torch["ways"][NO_BYTECODE]
    limit = total(torch["floor"])
    yield Goal("cold build and push: CPU / the machine's limit", middle(plain["cold"], "cpu") / limit, 1.35)
    yield Goal("nothing changed: build and push", middle(ours["unchanged"], "seconds"), 0.3, " s")
    docker = torch["ways"].get(PIP)
    if docker is None:
        return
    text = "cold build and push with bytecode / docker with pip"
    for figure, name in (("seconds", "time"), ("cpu", "CPU")):
        ratio = middle(ours["cold"], figure) / middle(docker["cold"], figure)
        yield Goal(f"{text}: {name}", ratio, 1 / 6)
    if UV in torch["ways"] and UV_NO_COMPILE in torch["ways"]:
        with_it, without = (middle(torch["ways"][way]["cold"], "sent") for way in (UV, UV_NO_COMPILE))
        growth, theirs = middle(ours["cold"], "sent") - middle(plain["cold"], "sent"), with_it - without
        yield Goal("bytes that bytecode adds to the image / what it adds to docker's", growth / theirs, 1.0)


def _of_sifs(workloads: Mapping[str, Any]) -> Iterator[Goal]:
    if sifs := workloads.get("cuda", {}).get("sif"):
        seconds = middle(sifs["builder, flat"], "seconds")
        yield Goal("flat SIF of the CUDA image", seconds, _FLAT_SIF_BEFORE_S / 2, " s")


def _of_starts(workloads: Mapping[str, Any]) -> Iterator[Goal]:
    rows = workloads.get("torch", {}).get("start") or []
    by_name = {(row["case"], row["tool"], row["image"]): row for row in rows}
    for row in rows:
        rival = by_name.get((row["case"], row["tool"], row["against"]))
        if row["image"] in (row["against"], NO_BYTECODE) or rival is None:
            continue
        ratio = median(row["seconds"]) / median(rival["seconds"])
        limit = 1 / 5 if row["case"] == AFTER_BUMP else 1.0
        yield Goal(
            f"{row['case']}, {row['tool']}, {row['image']} / {row['against']}", ratio, limit, start=True
        )


def table(found: Sequence[Goal]) -> list[str]:
    """The goals as a Markdown table."""
    show: Callable[[float, str], str] = lambda value, unit: f"{value:.2f}{unit}"  # noqa: E731
    lines = ["| goal | measured | limit | |", "|---|---|---|---|"]
    for goal in found:
        verdict = "met" if goal.met else "**not met**"
        lines.append(
            f"| {goal.text} | {show(goal.value, goal.unit)} | {show(goal.limit, goal.unit)} | {verdict} |"
        )
    return lines
