"""The goals of builder's speed, and whether the results of a run meet them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.workloads import BUILDER, NO_BYTECODE, UV, UV_NO_COMPILE

#: Seconds that the flat SIF of an image of this size took before it was made faster; the goal is a half.
_FLAT_SIF_BEFORE_S = 41.0
#: The case of a start whose limit is a fifth of the rival's, not the whole.
AFTER_BUMP = "pull and start after a bump"
#: The rival of each of builder's ways: Docker with uv, which compiles modules or does not.
RIVALS = {NO_BYTECODE: UV_NO_COMPILE, BUILDER: UV}
#: The case of a rival that is compared with a case of builder, if it has another name.
_RIVAL_CASES = {"fresh": "cold"}
#: What was tried for a goal that is not met, and what stands in the way, by the goal's text.
_PYTHON = "uv finds Python in the base, and builder also lays it out"
NOTES: dict[str, str] = {
    "torch, cold: CPU": ("73 % are inflate, CRC, sha256, libdeflate and the kernel"),
    "torch, cold, modules compiled: CPU": (
        "nine tenths of the container's time are Python's own compile()"
    ),
    "torch, cold, modules compiled: peak memory": (
        "workers that compile the largest modules, beside builder's indexes of all packages"
    ),
    "torch, fresh machine, modules compiled: received": (
        "10 MB are the Python that compiles, 12 the changed group, the rest is read back"
    ),
    "small, cold: CPU": _PYTHON,
    "small, cold, modules compiled: CPU": f"{_PYTHON} and compiles its library",
    "flat SIF of the CUDA image": "20.5 and 24.3 s in two runs, nothing was tried",
}


@dataclass(frozen=True)
class Goal:
    """A measured value and its limit."""

    text: str
    value: float
    limit: float
    unit: str = ""
    """Empty: the value is a ratio."""
    start: bool = False
    """It is about a start or an import, which have a table of their own."""

    @property
    def met(self) -> bool:
        return self.value <= self.limit

    @property
    def note(self) -> str:
        """What was tried, and what stands in the way; empty if nothing was noted."""
        return NOTES.get(self.text, "")


@dataclass(frozen=True)
class _Ratio:
    """The limit of one figure of builder, as a part of the rival's."""

    text: str
    workload: str
    way: str
    case: str
    figure: str
    limit: float


_COMPILED = "modules compiled"
_RATIOS = (
    _Ratio("torch, cold: CPU", "torch", NO_BYTECODE, "cold", "cpu", 1 / 4.5),
    _Ratio(f"torch, cold, {_COMPILED}: CPU", "torch", BUILDER, "cold", "cpu", 1 / 3),
    _Ratio(f"torch, cold, {_COMPILED}: peak memory", "torch", BUILDER, "cold", "rss", 1 / 2.5),
    _Ratio("torch, one package bumped: CPU", "torch", NO_BYTECODE, "bumped", "cpu", 1 / 30),
    _Ratio(
        f"torch, one package bumped, {_COMPILED}: CPU", "torch", BUILDER, "bumped", "cpu", 1 / 55
    ),
    _Ratio("torch, nothing changed: CPU", "torch", BUILDER, "unchanged", "cpu", 1.0),
    _Ratio(f"torch, fresh machine, {_COMPILED}: CPU", "torch", BUILDER, "fresh", "cpu", 1 / 25),
    _Ratio(
        f"torch, fresh machine, {_COMPILED}: received",
        "torch",
        BUILDER,
        "fresh",
        "received",
        1 / 30,
    ),
    _Ratio("small, cold: CPU", "small", NO_BYTECODE, "cold", "cpu", 1.2),
    _Ratio(f"small, cold, {_COMPILED}: CPU", "small", BUILDER, "cold", "cpu", 1.5),
)


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
    for ratio in _RATIOS:
        ways = workloads.get(ratio.workload, {}).get("ways", {})
        ours = ways.get(ratio.way, {}).get(ratio.case)
        theirs = ways.get(RIVALS[ratio.way], {}).get(_RIVAL_CASES.get(ratio.case, ratio.case))
        if ours and theirs:
            value = middle(ours, ratio.figure) / middle(theirs, ratio.figure)
            yield Goal(ratio.text, value, ratio.limit)
    ways = workloads.get("torch", {}).get("ways", {})
    if {BUILDER, NO_BYTECODE, UV, UV_NO_COMPILE} <= set(ways):
        sent = {way: middle(ways[way]["cold"], "sent") for way in ways}
        growth, theirs = sent[BUILDER] - sent[NO_BYTECODE], sent[UV] - sent[UV_NO_COMPILE]
        yield Goal("torch: bytes that compiled modules add to the image", growth / theirs, 1.0)


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
            f"{row['case']}, {row['tool']}, {row['image']} / {row['against']}",
            ratio,
            limit,
            start=True,
        )


def table(found: Sequence[Goal]) -> list[str]:
    """The goals as a Markdown table."""
    lines = ["| goal | measured | limit | |", "|---|---|---|---|"]
    for goal in found:
        value, limit = (_shown(number, goal) for number in (goal.value, goal.limit))
        verdict = "met" if goal.met else "**not met**"
        if goal.note and not goal.met:
            verdict += f": {goal.note}"
        lines.append(f"| {goal.text} | {value} | {limit} | {verdict} |")
    return lines


def _shown(number: float, goal: Goal) -> str:
    """A number with the goal's unit; a fraction, such as 1/4.5, if the goal is a part of the rival's."""
    if not goal.unit and goal.limit < 1 and 0 < number < 1:
        return f"1/{1 / number:.1f}"
    return f"{number:.2f}{goal.unit}"
