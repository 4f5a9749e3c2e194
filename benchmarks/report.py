"""Results as Markdown tables, and the page that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import goals
from benchmarks.floor import total
from benchmarks.goals import middle
from benchmarks.workloads import BUILDER, UV

BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"
_PLOT = "![CPU seconds and time of a cold build against the size of its packages](performance.svg)"


def write_page(tables: str, page: Path, begin: str = BEGIN, end: str = END) -> None:
    """Replace what is between two markers of a page.

    Args:
        tables: the new text.
        page: the page.
        begin: the first marker.
        end: the second marker.

    Raises:
        ValueError: the page has no such markers.
    """
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{page} has no {begin} and {end}")
    page.write_text(f"{before}{begin}\n{tables}{end}{after}")


def render(results: Mapping[str, Any]) -> str:
    """Return all tables of a run."""
    blocks = [[_head(results)]]
    if found := [goal for goal in goals.goals(results) if not goal.start]:
        blocks.append(["### Goals", "", *goals.table(found)])
    blocks.append(_builds(results["workloads"]))
    if fresh := _fresh(results["workloads"]):
        blocks.append(fresh)
    if sifs := _sifs(results["workloads"]):
        blocks.append(sifs)
    if rows := results["workloads"].get("torch", {}).get("start"):
        blocks.append(_starts(rows))
    if results.get("size"):
        blocks.append(["### Cost against size", "", _PLOT])
    if results["skipped"]:
        skipped = [f"- {name}: {reason}" for name, reason in results["skipped"].items()]
        blocks.append(["### Not measured", "", *skipped])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _head(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    text = (
        f"{results['date']}, {machine['cores']} cores ({machine['cpu']}),\n"
        f"{machine['memory'] / 2**30:.0f} GiB, load {machine['load']:.1f} before the run"
    )
    if "all" in results["seconds"]:
        text += f"; the run took {results['seconds']['all'] / 60:.0f} minutes"
    return f"{text}. Figures are medians;\nthe raw ones are in `benchmarks/results.json`."


def _builds(workloads: Mapping[str, Any]) -> list[str]:
    lines = [
        "### Builds",
        "",
        "Time, CPU seconds, peak of the resident memory, and bytes of build and push.",
        f"The machine's limit: {_limits(workloads)}.",
        "",
        "| workload | way | cold | CPU | memory | sent | one package bumped | nothing changed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, workload in workloads.items():
        ways = workload["ways"]
        lines += [_build(name, way, ways[way]) for way in sorted(ways, key=_ours_last)]
    return lines


def _fresh(workloads: Mapping[str, Any]) -> list[str]:
    """Return the table of fresh machines; empty if none was measured. Docker's build is its cold one."""
    rows = []
    for name, workload in workloads.items():
        ways = workload["ways"]
        ours, theirs = ways.get(BUILDER, {}).get("fresh"), ways.get(UV, {}).get("cold")
        for way, runs in ((UV, theirs), (BUILDER, ours)):
            if ours and runs:
                costs = [f"{middle(runs, figure):.1f} s" for figure in ("seconds", "cpu")]
                traffic = [_bytes(middle(runs, figure)) for figure in ("received", "sent")]
                rows.append(f"| {name} | {_bold(way)} | {' | '.join(costs + traffic)} |")
    head = ["### One package bumped, fresh machine", ""]
    head += ["| workload | way | time | CPU | received | sent |", "|---|---|---|---|---|---|"]
    return [*head, *rows] if rows else []


def _limits(workloads: Mapping[str, Any]) -> str:
    floors = {name: workload.get("floor") for name, workload in workloads.items()}
    return ", ".join(f"{name} {total(floor):.1f} s" for name, floor in floors.items() if floor)


def _ours_last(way: str) -> tuple[bool, str]:
    return way.startswith(BUILDER), way


def _build(name: str, way: str, cases: Mapping[str, Any]) -> str:
    cold, bumped, unchanged = (cases.get(case) for case in ("cold", "bumped", "unchanged"))
    assert cold
    cells = [f"{middle(cold, figure):.1f} s" for figure in ("seconds", "cpu")]
    cells += [_bytes(middle(cold, figure)) for figure in ("rss", "sent")]
    cells.append(f"{_costs(bumped, 1)}, {_bytes(middle(bumped, 'sent'))}" if bumped else "")
    cells.append(_costs(unchanged, 2) if unchanged else "")
    return f"| {name} | {_bold(way)} | {' | '.join(cells)} |"


def _costs(runs: Sequence[Mapping[str, Any]], digits: int) -> str:
    return f"{middle(runs, 'seconds'):.{digits}f} s, {middle(runs, 'cpu'):.{digits}f} s CPU"


def _bold(way: str) -> str:
    return f"**builder**{way.removeprefix(BUILDER)}" if way.startswith(BUILDER) else way


def _sifs(workloads: Mapping[str, Any]) -> list[str]:
    """Return the table of SIFs; empty if none was made."""
    rows = [
        f"| {name} | {_bold(way)} | {middle(runs, 'seconds'):.1f} s | {middle(runs, 'cpu'):.1f} s "
        f"| {_bytes(middle(runs, 'size'))} |"
        for name, workload in workloads.items()
        for way, runs in workload.get("sif", {}).items()
    ]
    head = ["### SIFs", "", "| workload | by | time | CPU | size |", "|---|---|---|---|---|"]
    return [*head, *rows] if rows else []


def _starts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of starts: a row per case and image, a column per tool."""
    seconds = {(row["case"], row["image"], row["tool"]): median(row["seconds"]) for row in rows}
    tools = list(dict.fromkeys(row["tool"] for row in rows))
    lines = [
        "### Starts and imports",
        "",
        f"Seconds for the image of workload torch; in parentheses for that of {UV}.",
        "",
        f"| case | image | {' | '.join(tools)} |",
        "|---|---|" + "---|" * len(tools),
    ]
    rivals = {(row["case"], row["tool"]): row["against"] for row in rows}
    for case, image in dict.fromkeys((row["case"], row["image"]) for row in rows):
        if not image.startswith(BUILDER):
            continue
        cells = []
        for tool in tools:
            rival = seconds.get((case, rivals.get((case, tool), ""), tool))
            ours = seconds.get((case, image, tool))
            cells.append(f"{ours:.1f} ({rival:.1f})" if ours and rival else "")
        lines.append(f"| {case} | {_bold(image)} | {' | '.join(cells)} |")
    return lines


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
