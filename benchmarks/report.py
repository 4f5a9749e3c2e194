"""Results as Markdown tables, and the page that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import goals
from benchmarks.floor import STEPS, total
from benchmarks.goals import middle
from benchmarks.workloads import BUILDER, NO_BYTECODE, NO_COMPILE, UV_NO_COMPILE

BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"
_CASES = {"cold": "cold", "unchanged": "nothing changed", "bumped": "one small package bumped"}
#: Rivals without bytecode, which are compared with builder's image without it.
_NO_BYTECODE_RIVALS = (NO_COMPILE, UV_NO_COMPILE)


def write_page(tables: str, page: Path, begin: str = BEGIN, end: str = END) -> None:
    """Replaces what is between two markers of a page.

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
    """All tables of a run."""
    blocks = [[_head(results)]]
    if found := goals.goals(results):
        blocks.append(["### Goals", "", *goals.table(found)])
    for name, workload in results["workloads"].items():
        blocks.append(_workload(name, workload))
    if results.get("size"):
        blocks.append(_sizes(results["size"]))
    if results["skipped"]:
        skipped = [f"- {name}: {reason}" for name, reason in results["skipped"].items()]
        blocks.append(["### Not measured", "", *skipped])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _head(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    text = (
        f"{results['date']}, {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory'] / 2**30:.0f} GiB, load {machine['load']:.1f} before the run"
    )
    if "all" in results["seconds"]:
        text += f"; the run took {results['seconds']['all'] / 60:.0f} minutes"
    return f"{text}. A figure is the median of its repetitions, with the least and the greatest behind it."


def _workload(name: str, workload: Mapping[str, Any]) -> list[str]:
    ways, floor = workload["ways"], workload.get("floor")
    lines = [f"### Workload {name}: {workload['title']}", ""]
    if floor:
        lines += [
            f"{workload['packages']} packages, {floor['files']:,} files, "
            f"{_bytes(floor['packed'])} of wheels, {_bytes(floor['unpacked'])} unpacked.",
            "",
        ]
    lines += [
        "| | build + push | CPU | peak memory (shared once) | sent to the registry |",
        "|---|---|---|---|---|",
    ]
    for case, title in _CASES.items():
        for way in _ours_last(ways):
            if runs := ways[way].get(case):
                lines.append(_row(f"{_bold(way)}, {title}", runs))
    lines += _ratios(ways)
    if floor:
        lines += ["", *_floor(floor, ways, detailed=name == "torch")]
    if same := workload.get("same packages"):
        lines += ["", _same_packages(same)]
    if sifs := workload.get("sif"):
        lines += ["", *_sifs(sifs)]
    if starts := workload.get("start"):
        lines += ["", *_starts(starts)]
    return lines


def _ours_last(ways: Mapping[str, Any]) -> list[str]:
    return sorted(ways, key=lambda way: (way.startswith(BUILDER), way))


def _bold(way: str) -> str:
    return f"**builder**{way.removeprefix(BUILDER)}" if way.startswith(BUILDER) else way


def _row(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    seconds = spread([run["seconds"] for run in runs])
    if "build" in runs[0]:
        seconds += f" = {middle(runs, 'build'):.1f} + {middle(runs, 'push'):.1f}"
    memory = f"{middle(runs, 'rss') / 1e6:.0f} MB ({middle(runs, 'pss') / 1e6:.0f})"
    cpu = spread([run["cpu"] for run in runs])
    return f"| {name} | {seconds} | {cpu} | {memory} | {_bytes(middle(runs, 'sent'))} |"


def spread(values: Sequence[float]) -> str:
    """The median, with the least and the greatest value if there are several."""
    text = f"{sorted(values)[len(values) // 2]:.2f} s"
    return text if len(values) == 1 else f"{text} ({min(values):.2f}-{max(values):.2f})"


def part_of(ratio: float) -> str:
    """How much of a rival's cost ours is, if the rival's is ``ratio`` times ours: ``1/4.0``, or ``1.3``."""
    return f"1/{ratio:.1f}" if ratio >= 1 else f"{1 / ratio:.1f}"


def _ratios(ways: Mapping[str, Any]) -> list[str]:
    """builder against each rival: with bytecode against those that compile, without against the others."""
    lines = []
    for way in ways:
        if way.startswith(BUILDER):
            continue
        ours = NO_BYTECODE if way in _NO_BYTECODE_RIVALS else BUILDER
        cold, theirs = ways[ours]["cold"], ways[way]["cold"]
        time, cpu = (middle(theirs, f) / middle(cold, f) for f in ("seconds", "cpu"))
        lines.append(f"| {_bold(ours)} against {way} | {part_of(time)} | {part_of(cpu)} |")
    return ["", "| cold build + push | time | CPU |", "|---|---|---|", *lines] if lines else []


def _floor(floor: Mapping[str, float], ways: Mapping[str, Any], *, detailed: bool) -> list[str]:
    limit = total(floor)
    compared = ", ".join(
        f"{middle(ways[way]['cold'], 'cpu') / limit:.2f} times that ({_bold(way)})"
        for way in (NO_BYTECODE, BUILDER)
    )
    text = f"The machine's limit: {limit:.2f} CPU seconds. A cold build: {compared}."
    if not detailed:
        return [text]
    steps = [f"| {name} | {floor[name]:.2f} |" for name in STEPS]
    stages = ways[BUILDER]["cold"][0]["stages"]
    within = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items())
    table = ["| step over all wheels | seconds |", "|---|---|", *steps]
    return [text, f"Within the first cold build: {within}.", "", *table]


def _same_packages(found: Mapping[str, Any]) -> str:
    different = found["only builder"] + found["only docker"]
    exceptions = f", except for {', '.join(different)}" if different else ""
    return f"Both images contain the same {found['count']} distributions{exceptions}."


def _sifs(sifs: Mapping[str, Any]) -> list[str]:
    rivals = [way for way in sifs if not way.startswith(BUILDER)]
    head = "".join(f" against {way} |" for way in rivals)
    lines = [f"| SIF | time | CPU | size |{head}", "|---|---|---|---|" + "---|" * len(rivals)]
    for way, runs in sifs.items():
        seconds = middle(runs, "seconds")
        ratios = "".join(f" {part_of(middle(sifs[rival], 'seconds') / seconds)} |" for rival in rivals)
        times, cpu = (spread([run[figure] for run in runs]) for figure in ("seconds", "cpu"))
        lines.append(f"| {_bold(way)} | {times} | {cpu} | {_bytes(middle(runs, 'size'))} |{ratios}")
    return lines


def _starts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| start | by | image | time | pull | CPU | against | time / its | CPU / its |"]
    lines.append("|---" * 9 + "|")
    by_name = {(row["case"], row["tool"], row["image"]): row for row in rows}
    for row in rows:
        rival = by_name.get((row["case"], row["tool"], row["against"]))
        figures = [spread(row[f]) if row.get(f) else "" for f in ("seconds", "pull_seconds", "cpu")]
        ratios = ["", "", ""]
        if rival is not None and rival is not row:
            ratios = [row["against"]]
            ratios += [f"{median(row[f]) / median(rival[f]):.2f}" for f in ("seconds", "cpu")]
        cells = [row["case"], row["tool"], _bold(row["image"]), *figures, *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _sizes(points: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "### Cost against size",
        "",
        "![CPU seconds and time of a cold build against the size of its packages](performance.svg)",
        "",
        "| packages | unpacked | limit, CPU | builder, CPU | time | bytecode: none, CPU | time |",
        "|---|---|---|---|---|---|---|",
    ]
    for point in points:
        figures = []
        for way in (BUILDER, NO_BYTECODE):
            cold = point["ways"][way]["cold"]
            figures += [f"{middle(cold, figure):.1f} s" for figure in ("cpu", "seconds")]
        floor = point["floor"]
        start = f"| {point['packages']} | {_bytes(floor['unpacked'])} | {total(floor):.1f} s |"
        lines.append(f"{start} {' | '.join(figures)} |")
    return lines


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
