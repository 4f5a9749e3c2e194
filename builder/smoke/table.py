"""A smoke report, and a comparison of two images, as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from builder.smoke.compare import Comparison
from builder.smoke.grade import verdict_meaning
from builder.smoke.run import SmokeReport
from builder.smoke.values import number

#: Findings whose fraction is shown beside the measurement.
_GRADED_BASES = ("achieved", "acceptance", "peak", "roofline")
_COLORS = {"pass": "green", "skip": "dim", "warn": "yellow", "fail": "red", "error": "red"}
_OUTCOME_COLORS = {"slower": "red", "faster": "green", "other": "dim"}


def render(report: SmokeReport, *, skipped: bool = False) -> Table:
    """Probes, measurements and findings, with advice where something is wrong. The title is the verdict.

    Args:
        report: the result of a smoke test.
        skipped: show skipped entries, too.
    """
    verdict = _colored(report.verdict, report.verdict)
    table = _table(f"smoke test: {verdict} in {report.duration_s:.1f} s ({report.runner})")
    findings = (report.report.get("grade") or {}).get("findings", [])
    fractions = _fractions(findings)
    for entry in [*report.report["probes"], *report.report["measurements"]]:
        if entry["status"] == "skip" and not skipped:
            continue
        seen = escape(entry["seen"] or format_entry(entry))
        if entry["id"] in fractions and not entry["seen"]:
            seen += f" [dim]{fractions[entry['id']]:.0%} of the reference[/dim]"
        _add_entry(table, entry, seen)
    shown = ("warn", "fail", "skip") if skipped else ("warn", "fail")
    for finding in findings:
        if finding["status"] in shown:
            _add_entry(table, finding, escape(finding["seen"]))
    table.caption = verdict_meaning(report.verdict)
    table.caption_justify = "left"
    return table


def _table(title: str) -> Table:
    return Table("", "name", "result", box=None, title=title, title_justify="left")


def _colored(status: str, text: str) -> str:
    return f"[{_COLORS[status]}]{text}[/]"


def _fractions(findings: list[dict[str, Any]]) -> dict[str, float]:
    """The fraction of the reference of each measurement that passed, on its first device."""
    fractions: dict[str, float] = {}
    for finding in findings:
        fraction = number(finding, "fraction")
        if fraction is not None and finding["status"] == "pass" and finding.get("basis") in _GRADED_BASES:
            fractions.setdefault(finding["id"], fraction)
    return fractions


def _add_entry(table: Table, entry: dict[str, Any], seen: str) -> None:
    if entry["advice"]:
        seen += f"\n[dim]-> {escape(entry['advice'])}[/dim]"
    table.add_row(_colored(entry["status"], entry["status"]), escape(entry["id"]), seen)


def format_entry(entry: dict[str, Any]) -> str:
    """A measurement on one line: ``83.8 gflop/s ± 6.6 (5 times, size 2048)``; empty if it has no value."""
    for key, value in entry.items():
        if key.startswith("median_") and isinstance(value, int | float):
            return _format_median(entry, key.removeprefix("median_"), value)
    return ""


def _format_median(entry: dict[str, Any], unit: str, median: float) -> str:
    parts = [f"{median:.4g} {unit.replace('_per_', '/')}"]
    spread = entry.get(f"mad_{unit}")
    if isinstance(spread, int | float):
        parts.append(f"± {spread:.2g}")
    notes = []
    if "repeats" in entry:
        notes.append("once" if entry["repeats"] == 1 else f"{entry['repeats']} times")
    if "size" in entry:
        notes.append(f"size {entry['size']}")
    if notes:
        parts.append(f"({', '.join(notes)})")
    return " ".join(parts)


def render_comparison(comparison: Comparison, name: str) -> Table:
    """What got slower or faster than another image, which probes got worse, and which packages changed.

    Args:
        comparison: the comparison.
        name: the other image, as the user named it.
    """
    old, new = comparison.old[-1], comparison.new[-1]
    slower = comparison.regressions
    result = f"[red]{len(slower)} slower[/]" if slower else "[green]nothing slower[/]"
    table = _table(
        f"compared with {escape(name)} ({escape(old.started[:10])}, {escape(old.digest[:19])}): {result}; "
        f"{len(comparison.new)} against {len(comparison.old)} runs"
    )
    if old.digest == new.digest:
        table.add_row("", "", "the same image: differences come from the machine")
    for change in comparison.changes:
        if change.outcome in _OUTCOME_COLORS:
            outcome = f"[{_OUTCOME_COLORS[change.outcome]}]{change.outcome}[/]"
            table.add_row(outcome, escape(change.id), escape(str(change).partition(": ")[2]))
    for probe in comparison.probes:
        table.add_row(_colored(probe.new, probe.new), escape(probe.id), f"was {probe.old}")
    if slower:
        _add_packages(table, comparison)
    for note in comparison.notes:
        table.add_row("", "", f"[dim]{escape(note)}[/dim]")
    return table


def _add_packages(table: Table, comparison: Comparison) -> None:
    if comparison.packages is None:
        return
    for package in comparison.packages:
        label = "[bold]changed[/]" if package.likely else "changed"
        table.add_row("", label, escape(str(package)))
    if not comparison.packages:
        table.add_row("", "packages", "none changed: check the machine, its driver and its load")
