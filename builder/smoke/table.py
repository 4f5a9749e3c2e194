"""A smoke report for people."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from builder.smoke import SmokeReport

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
    for item in [*report.report["probes"], *report.report["measurements"]]:
        if item["status"] == "skip" and not skipped:
            continue
        seen = escape(item["seen"] or figures(item))
        if item["advice"]:
            seen += f"\n[dim]-> {escape(item['advice'])}[/dim]"
        table.add_row(f"[{_COLOURS[item['status']]}]{item['status']}[/]", escape(item["id"]), seen)
    return table


def figures(item: dict[str, Any]) -> str:
    """A measurement in a line: ``83.8 gflop/s ± 6.6 (5 times, size 2048)``."""
    for key, value in item.items():
        if key.startswith("median_") and isinstance(value, int | float):
            unit = key.removeprefix("median_")
            spread = item.get(f"mad_{unit}")
            more = [f"± {spread:.2g}"] if isinstance(spread, int | float) else []
            notes = [f"{item['repeats']} times"] if "repeats" in item else []
            notes += [f"size {item['size']}"] if "size" in item else []
            return " ".join([f"{value:.4g} {unit.replace('_per_', '/')}", *more, *([f"({', '.join(notes)})"] if notes else [])])
    return ""
