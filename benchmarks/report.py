"""Results as Markdown tables, and the page that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"
_TOOLS = ("docker", "docker --no-compile", "buildah")
_SCENARIOS = {"cold": "cold", "nothing changed": "unchanged", "one small package bumped": "bumped"}


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
    """All tables of bench_publish."""
    machine, floor, builder = results["machine"], results["floor"], results["builder"]
    about = [
        f"{machine['cores']} cores ({machine['cpu']})",
        f"{machine['memory'] / 2**30:.0f} GiB",
        f"medians of {results['runs']}",
    ]
    size = f"{floor['packed'] / 1e6:.0f} MB of wheels, {floor['unpacked'] / 1e9:.2f} GB unpacked"
    lines = [
        f"{results['date']}, {', '.join(about)}; {size}.",
        "",
        "| | build + push | CPU | peak memory (shared once) | sent to the registry |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(f"{tool}, cold", results[tool]["cold"]) for tool in _TOOLS if tool in results]
    lines += [_row(f"**builder**, {name}", builder[key]) for name, key in _SCENARIOS.items()]
    lines += [
        _row(f"{tool}, nothing changed", results[tool]["unchanged"])
        for tool in ("docker", "buildah")
        if tool in results
    ]
    lines += ["", *_ratios(results), "", *_floor(floor, builder["cold"], machine["cores"])]
    if "same packages" in results:
        lines += ["", _same_packages(results["same packages"])]
    return "\n".join(lines) + "\n"


def _row(name: str, data: Mapping[str, Any]) -> str:
    figures = data["median"]
    time = f"{figures['seconds']:.2f} s"
    if "build" in data:
        time += f" ({data['build']['seconds']:.1f} + {data['push']['seconds']:.1f})"
    memory = f"{figures['rss'] / 1e6:.0f} MB ({figures['pss'] / 1e6:.0f})"
    return f"| {name} | {time} | {figures['cpu']:.1f} s | {memory} | {_bytes(data['bytes_sent'])} |"


def _same_packages(found: Mapping[str, Any]) -> str:
    different = found["only builder"] + found["only docker"]
    exceptions = f", except for {', '.join(different)}" if different else ""
    return f"Both images contain the same {found['count']} distributions{exceptions}."


def _ratios(results: Mapping[str, Any]) -> list[str]:
    ours = results["builder"]["cold"]["median"]
    lines = ["| cold build + push | time | CPU |", "|---|---|---|"]
    for tool in _TOOLS:
        if tool in results:
            theirs = results[tool]["cold"]["median"]
            time, cpu = theirs["seconds"] / ours["seconds"], theirs["cpu"] / ours["cpu"]
            lines.append(f"| builder against {tool} | 1/{time:.1f} | 1/{cpu:.1f} |")
    return lines


def _floor(floor: Mapping[str, float], cold: Mapping[str, Any], cores: int) -> list[str]:
    steps = {name: seconds for name, seconds in floor.items() if name not in ("packed", "unpacked")}
    total, ours = sum(steps.values()), cold["median"]
    least, seconds, cpu = total / cores, ours["seconds"], ours["cpu"]
    output = cold["runs"][0]["output"]
    stages = {**output.get("build_seconds", {}), "push": (output.get("push") or {}).get("seconds", 0.0)}
    return [
        "| step over all the wheels, alone, on one core | seconds |",
        "|---|---|",
        *(f"| {name} | {seconds:.2f} |" for name, seconds in steps.items()),
        f"| **together** | **{total:.2f}** |",
        "",
        f"So {cores} cores need at least {least:.1f} s; "
        f"builder takes {seconds:.1f} s with the push ({seconds / least:.1f} times that) "
        f"and {cpu:.1f} CPU seconds ({cpu / total:.1f} times).",
        f"Within the first cold run: {', '.join(f'{name} {time:.2f} s' for name, time in stages.items())}.",
    ]


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
