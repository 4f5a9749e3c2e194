"""A smoke report, and a comparison of two images, for people at a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from builder.smoke.grade import number
from builder.smoke.history import Comparison
from builder.smoke.run import SmokeReport

#: What a figure may be a part of, in a word.
_BASES = ("achieved", "acceptance", "peak", "roofline")
_COLOURS = {"pass": "green", "skip": "dim", "warn": "yellow", "fail": "red", "error": "red"}


def render(report: SmokeReport, *, skipped: bool = False) -> Table:
    """Probes and measurements with what was seen, and what to do where something is not right; the verdict is the title.

    Args:
        report: what :func:`builder.smoke.smoke` gave.
        skipped: show what had no meaning here, too.
    """
    verdict = f"[{_COLOURS[report.verdict]}]{report.verdict}[/]"
    title = f"smoke test: {verdict} in {report.duration_s:.1f} s ({report.runner})"
    table = Table("", "what", "seen", box=None, title=title, title_justify="left")
    findings = (report.report.get("grade") or {}).get("findings", [])
    passed = [f for f in reversed(findings) if f.get("basis") in _BASES and f["status"] == "pass"]
    graded = {f["id"]: part for f in passed if (part := number(f, "fraction")) is not None}
    for item in [*report.report["probes"], *report.report["measurements"]]:
        if item["status"] == "skip" and not skipped:
            continue
        seen = escape(item["seen"] or figures(item))
        if (part := graded.get(item["id"])) is not None and not item["seen"]:
            seen += f" [dim]{part:.0%} of what it can do[/dim]"
        _row(table, item, seen)
    for item in findings:
        if item["status"] in ("warn", "fail") or (skipped and item["status"] == "skip"):
            _row(table, item, escape(item["seen"]))
    return table


def _row(table: Table, item: dict[str, Any], seen: str) -> None:
    if item["advice"]:
        seen += f"\n[dim]-> {escape(item['advice'])}[/dim]"
    table.add_row(f"[{_COLOURS[item['status']]}]{item['status']}[/]", escape(item["id"]), seen)


def figures(item: dict[str, Any]) -> str:
    """A measurement in a line: ``83.8 gflop/s ± 6.6 (5 times, size 2048)``."""
    for key, value in item.items():
        if key.startswith("median_") and isinstance(value, int | float):
            unit = key.removeprefix("median_")
            spread = item.get(f"mad_{unit}")
            more = [f"± {spread:.2g}"] if isinstance(spread, int | float) else []
            notes = [f"{item['repeats']} times"] if "repeats" in item else []
            notes += [f"size {item['size']}"] if "size" in item else []
            return " ".join(
                [
                    f"{value:.4g} {unit.replace('_per_', '/')}",
                    *more,
                    *([f"({', '.join(notes)})"] if notes else []),
                ]
            )
    return ""


def render_comparison(comparison: Comparison, name: str) -> Table:
    """What got slower or faster against another image, which probes got worse, and what had changed in it."""
    old, new = comparison.old[-1], comparison.new[-1]
    count = f"{len(comparison.new)} against {len(comparison.old)} runs"
    slower = comparison.regressions
    said = f"[red]{len(slower)} slower[/]" if slower else "[green]nothing slower[/]"
    title = f"against {escape(name)} ({escape(old.started[:10])}, {escape(old.digest[:19])}): {said}; {count}"
    table = Table("", "what", "seen", box=None, title=title, title_justify="left")
    if old.digest == new.digest:
        table.add_row("", "", "the same image: what differs is the machine's doing")
    colours = {"slower": "red", "faster": "green", "other": "dim"}
    for change in comparison.changes:
        if change.outcome in colours:
            seen = str(change).partition(": ")[2]
            table.add_row(f"[{colours[change.outcome]}]{change.outcome}[/]", escape(change.id), escape(seen))
    for probe, then, now in comparison.probes:
        table.add_row(f"[{_COLOURS[now]}]{now}[/]", escape(probe), f"was {then}")
    if slower and comparison.packages:
        for package in comparison.packages:
            table.add_row("", "[bold]changed[/]" if package.likely else "changed", escape(str(package)))
    elif slower and comparison.packages is not None:
        table.add_row("", "packages", "none changed: look at the machine, its driver and its load")
    for note in comparison.notes:
        table.add_row("", "", f"[dim]{escape(note)}[/dim]")
    return table
