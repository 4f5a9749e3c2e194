"""Results as Markdown, into the page that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"


def write_page(results: Mapping[str, Any], page: Path) -> str:
    """Puts the tables between the page's markers; gives them.

    Raises:
        ValueError: the page has no markers.
    """
    tables = render(results)
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{tables}{END}{after}")
    return tables


def render(results: Mapping[str, Any]) -> str:
    """All tables."""
    machine, floor, builder = results["machine"], results["floor"], results["builder"]
    what = f"{machine['cores']} cores ({machine['cpu']}), {machine['memory'] / 2**30:.0f} GiB, medians of {results['runs']}"
    lines = [
        f"{results['date']}, {what}; {floor['packed'] / 1e6:.0f} MB of wheels, {floor['unpacked'] / 1e9:.2f} GB unpacked.",
        "",
        "| | build + push | CPU | peak memory (shared once) | sent to the registry |",
        "|---|---|---|---|---|",
    ]
    rows = [
        (f"{name}, cold", results[name]["cold"])
        for name in ("docker", "docker --no-compile", "buildah")
        if name in results
    ]
    rows += [(f"**builder**, {name}", builder[key]) for name, key in _SCENES]
    rows += [
        (f"{name}, nothing changed", results[name]["unchanged"])
        for name in ("docker", "buildah")
        if name in results
    ]
    for name, data in rows:
        f = data["median"]
        split = (
            f" ({data['build']['seconds']:.1f} + {data['push']['seconds']:.1f})" if "build" in data else ""
        )
        memory = f"{f['rss'] / 1e6:.0f} MB ({f['pss'] / 1e6:.0f})"
        lines.append(
            f"| {name} | {f['seconds']:.2f} s{split} | {f['cpu']:.1f} s | {memory} | {_bytes(data['bytes_sent'])} |"
        )
    lines += ["", *_ratios(results), "", *_floor(floor, builder["cold"], machine["cores"])]
    if "same packages" in results:
        same = results["same packages"]
        differ = same["only builder"] + same["only docker"]
        lines += [
            "",
            f"Both images hold the same {same['count']} distributions{', but for ' + ', '.join(differ) if differ else ''}.",
        ]
    return "\n".join(lines) + "\n"


_SCENES = (("cold", "cold"), ("nothing changed", "unchanged"), ("one small package bumped", "bumped"))


def _ratios(results: Mapping[str, Any]) -> list[str]:
    ours = results["builder"]["cold"]["median"]
    lines = ["| cold build + push | time | CPU |", "|---|---|---|"]
    for name in ("docker", "docker --no-compile", "buildah"):
        if name in results:
            theirs = results[name]["cold"]["median"]
            lines.append(
                f"| builder against {name} | 1/{theirs['seconds'] / ours['seconds']:.1f} | 1/{theirs['cpu'] / ours['cpu']:.1f} |"
            )
    return lines


def _floor(floor: Mapping[str, float], cold: Mapping[str, Any], cores: int) -> list[str]:
    steps = {k: v for k, v in floor.items() if k not in ("packed", "unpacked")}
    lines = ["| step over all the wheels, alone, on one core | seconds |", "|---|---|"]
    lines += [f"| {name} | {seconds:.2f} |" for name, seconds in steps.items()]
    total, ours = sum(steps.values()), cold["median"]
    least, seconds, cpu = total / cores, ours["seconds"], ours["cpu"]
    lines += [
        f"| **together** | **{total:.2f}** |",
        "",
        f"So {cores} cores need {least:.1f} s at the very least; "
        f"builder takes {seconds:.1f} s with the push ({seconds / least:.1f} times that) "
        f"and {cpu:.1f} CPU seconds ({cpu / total:.1f} times).",
    ]
    inside = cold["runs"][0]["told"]
    stages = {**inside.get("build_seconds", {}), "push": (inside.get("push") or {}).get("seconds", 0.0)}
    lines.append(f"Within the first cold run: {', '.join(f'{k} {v:.2f} s' for k, v in stages.items())}.")
    return lines


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
