"""A smoke report, and a comparison of two images, as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from builder.smoke.compare import Comparison
from builder.smoke.conditions import conditions_of
from builder.smoke.figures import burst_text, size_text
from builder.smoke.finding import PUBLISHED
from builder.smoke.grade import verdict_meaning
from builder.smoke.run import SmokeReport
from builder.smoke.values import display_unit, findings_of, number, unit_of

#: Findings whose fraction is shown beside the measurement, and of what it is a fraction.
_REFERENCES = {basis: "the reference" for basis in (*PUBLISHED, "roofline")} | {"site": "this site's median"}
_COLORS = {"pass": "green", "skip": "dim", "warn": "yellow", "fail": "red", "error": "red"}
_OUTCOME_COLORS = {"slower": "red", "host": "yellow", "faster": "green", "other": "dim"}


def render(report: SmokeReport, *, skipped: bool = False) -> Table:
    """Probes, measurements and findings, with advice where something is wrong. The title is the verdict.

    Args:
        report: the result of a smoke test.
        skipped: show skipped entries, too.
    """
    verdict = _colored(report.verdict, report.verdict)
    table = _table(f"smoke test: {verdict} in {report.duration_s:.1f} s ({report.runner})")
    findings = findings_of(report.report)
    fractions = _fractions(findings)
    for entry in [*report.report["probes"], *report.report["measurements"]]:
        if entry["status"] == "skip" and not skipped:
            continue
        seen = escape(entry["seen"] or format_entry(entry))
        if entry["id"] in fractions and not entry["seen"]:
            seen += f" [dim]{', '.join(fractions[entry['id']])}[/dim]"
        state = _state(entry)
        if state and not entry["seen"]:
            seen += f"\n[dim]{escape(state)}[/dim]"
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


def _fractions(findings: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By measurement that passed: ``98% of the reference``, on its first device."""
    fractions: dict[str, dict[str, str]] = {}
    for finding in findings:
        fraction, name = number(finding, "fraction"), _REFERENCES.get(str(finding.get("basis")))
        if fraction is not None and finding["status"] == "pass" and name:
            fractions.setdefault(finding["id"], {}).setdefault(name, f"{fraction:.0%} of {name}")
    return {measurement: list(texts.values()) for measurement, texts in fractions.items()}


def _state(entry: dict[str, Any]) -> str:
    """The state of the GPU while it was measured, and the first speed if it fell; empty if not known."""
    unit = unit_of(entry)
    parts = [str(conditions_of(entry)), burst_text(entry, unit) if unit else ""]
    return "; ".join(part for part in parts if part)


def _add_entry(table: Table, entry: dict[str, Any], seen: str) -> None:
    if entry["advice"]:
        seen += f"\n[dim]-> {escape(entry['advice'])}[/dim]"
    table.add_row(_colored(entry["status"], entry["status"]), escape(entry["id"]), seen)


def format_entry(entry: dict[str, Any]) -> str:
    """A measurement on one line: ``83.8 GFLOP/s ± 6.6 (5 times, size 2,048)``; empty if it has no value."""
    for key, value in entry.items():
        if key.startswith("median_") and isinstance(value, int | float):
            return _format_median(entry, key.removeprefix("median_"), value)
    return ""


def _format_median(entry: dict[str, Any], unit: str, median: float) -> str:
    factor, shown = display_unit(median, unit)
    parts = [f"{median / factor:.4g} {shown}"]
    spread = entry.get(f"mad_{unit}")
    if isinstance(spread, int | float):
        parts.append(f"± {spread / factor:.2g}")
    notes = []
    if "repeats" in entry:
        notes.append("once" if entry["repeats"] == 1 else f"{entry['repeats']} times")
    if size_text(entry):
        notes.append(size_text(entry))
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
    result = "[green]nothing slower[/]" if comparison.evaluated else "[yellow]nothing could be evaluated[/]"
    if slower:
        result = f"[red]{len(slower)} slower[/]"
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
    causes = [
        str(cause)
        for cause in comparison.differences
        if cause.what != "packages" and (slower or (cause.changed and cause.what != "image"))
    ]
    if causes and old.digest != new.digest:
        table.add_row("", "what differs", escape("; ".join(causes)))
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
