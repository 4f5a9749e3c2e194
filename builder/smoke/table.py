"""A smoke report for people."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from builder.smoke import SmokeReport

_COLOURS = {"pass": "green", "skip": "dim", "warn": "yellow", "fail": "red", "error": "red"}


def render(report: SmokeReport) -> Table:
    """The probes and measurements, worst to be seen by colour, and the verdict as the title."""
    verdict = f"[{_COLOURS[report.verdict]}]{report.verdict}[/]"
    table = Table("", "what", "seen", box=None, title=f"smoke test: {verdict} in {report.duration_s:.1f} s ({report.runner})", title_justify="left")
    for item in [*report.report.get("probes", []), *report.report.get("measurements", [])]:
        figures = "  ".join(f"{k}={v:.4g}" for k, v in (item.get("figures") or {}).items() if isinstance(v, int | float))
        seen = escape(item["seen"] or figures)
        if item["advice"]:
            seen += f"\n[dim]-> {escape(item['advice'])}[/dim]"
        table.add_row(f"[{_COLOURS[item['status']]}]{item['status']}[/]", item["id"], seen)
    return table
