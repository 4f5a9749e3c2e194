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
#: The figures of a table's cells, and their decimals.
_COLD = {"seconds": 1, "cpu": 1, "rss": 0, "sent": 1}
_BUMPED = {"seconds": 1, "cpu": 1, "sent": 1}
_UNCHANGED = {"seconds": 2, "cpu": 2}
_FRESH = {"seconds": 1, "cpu": 1, "received": 1, "sent": 1}
_SIF = {"seconds": 1, "cpu": 1, "size": 0}
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
        "Build and push: time and CPU in seconds, memory and what was sent in MB.",
        f"The machine's limit: {_limits(workloads)}.",
        "",
        "| workload | way | cold: time | CPU | memory | sent "
        "| one package bumped: time, CPU, sent | nothing changed: time, CPU |",
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
        if ours and theirs:
            for way, runs in ((UV, theirs), (BUILDER, ours)):
                rows.append(f"| {name} | {_bold(way)} | {' | '.join(_figures(runs, _FRESH))} |")
    head = ["### One package bumped on a fresh machine", ""]
    head += ["| workload | way | time | CPU | received | sent |", "|---|---|---|---|---|---|"]
    return [*head, *rows] if rows else []


def _limits(workloads: Mapping[str, Any]) -> str:
    floors = {name: workload.get("floor") for name, workload in workloads.items()}
    return ", ".join(f"{name} {total(floor):.1f} s" for name, floor in floors.items() if floor)


def _ours_last(way: str) -> tuple[bool, str]:
    return way.startswith(BUILDER), way


def _build(name: str, way: str, cases: Mapping[str, Any]) -> str:
    cells = _figures(cases["cold"], _COLD)
    for case, figures in (("bumped", _BUMPED), ("unchanged", _UNCHANGED)):
        cells.append(", ".join(_figures(cases[case], figures)) if cases.get(case) else "")
    return f"| {name} | {_bold(way)} | {' | '.join(cells)} |"


def _figures(runs: Sequence[Mapping[str, Any]], figures: Mapping[str, int]) -> list[str]:
    """Return medians in seconds and MB, each with its number of decimals."""
    sizes = ("rss", "sent", "received", "size")
    medians = {figure: middle(runs, figure) / (1e6 if figure in sizes else 1) for figure in figures}
    return [f"{medians[figure]:.{digits}f}" for figure, digits in figures.items()]


def _bold(way: str) -> str:
    return f"**builder**{way.removeprefix(BUILDER)}" if way.startswith(BUILDER) else way


def _sifs(workloads: Mapping[str, Any]) -> list[str]:
    """Return the table of SIFs; empty if none was made."""
    rows = [
        f"| {name} | {_bold(way)} | {' | '.join(_figures(runs, _SIF))} |"
        for name, workload in workloads.items()
        for way, runs in workload.get("sif", {}).items()
    ]
    head = ["### SIFs", "", "| workload | by | time | CPU | size, MB |", "|---|---|---|---|---|"]
    return [*head, *rows] if rows else []


def _starts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of starts: a row per case and image, a column per tool and layout of SIFs."""
    by_name = {(row["case"], row["image"], row["tool"]): median(row["seconds"]) for row in rows}
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        rival = by_name.get((row["case"], row["against"], row["tool"]))
        if row["image"].startswith(BUILDER) and rival:
            image, column = _start_place(row["image"], row["tool"])
            ours = median(row["seconds"])
            cells.setdefault((row["case"], image), {})[column] = f"{ours:.1f} ({rival:.1f})"
    columns = list(dict.fromkeys(column for found in cells.values() for column in found))
    lines = [
        "### Starts and imports",
        "",
        f"Seconds for the image of workload torch; in parentheses for that of {UV}.",
        "",
        f"| case | image | {' | '.join(columns)} |",
        "|---|---|" + "---|" * len(columns),
    ]
    for (case, image), found in cells.items():
        lines.append(
            f"| {case} | {_bold(image)} | {' | '.join(found.get(c, '') for c in columns)} |"
        )
    return lines


def _start_place(image: str, tool: str) -> tuple[str, str]:
    """Return row and column of a start: SIFs of one image have a column for each layout."""
    name, _, layout = image.rpartition(", ")
    return (name, f"{tool}, {layout}") if layout in ("flat", "layered") else (image, tool)
